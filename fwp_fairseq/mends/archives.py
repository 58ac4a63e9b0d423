"""Unpacks an archive that is given to ``from_pretrained`` into a new folder, or refuses it and leaves it as it is.

fairseq unpacks any names in the archive, and moves their common prefix to the place of the archive.
"""

import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path

from fairseq import file_utils

from . import around


def _checked(archive: tarfile.TarFile, free: int) -> Iterator[tarfile.TarInfo]:
    """Yields the files, folders and hard links with our owner, usual modes and the current time.

    Raises TarError for anything else.

    tarfile.data_filter does almost the same, but Python 3.11.2 of Debian 12 does not have it. Symbolic links are
    refused even if each stays inside the folder, because several together can lead out of it. ``free``: bytes free on
    the disk.
    """
    for member in archive:
        names = [member.name, member.linkname] if member.islnk() else [member.name]
        if any(name.startswith("/") or ".." in Path(name).parts for name in names):
            raise tarfile.TarError(f"{' -> '.join(names)} is outside of the archive's folder")
        if not (member.isfile() or member.isdir() or member.islnk()):
            raise tarfile.TarError(f"{member.name} is a link or a device, expected files and folders")
        free -= member.size
        if free < 0:
            raise tarfile.TarError(f"its files are larger than the free space of the disk, first {member.name}")
        member.mode, member.mtime = 0o755 if member.isdir() else 0o644, time.time()
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        yield member


@around(file_utils, "load_archive_file")
def load_inside(load, archive_file):
    try:
        path = Path(file_utils.cached_path(archive_file, cache_dir=None))
    except OSError:
        path = None
    if path is None or not path.is_file():
        return load(archive_file)  # which says that there is no such file, or returns the folder
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".unpacked") as beside:
        folder = Path(beside, "content")
        folder.mkdir()
        try:
            with tarfile.open(path) as archive:
                archive.extraction_filter = lambda member, folder: member  # checked here, for every version of Python
                archive.extractall(folder, list(_checked(archive, shutil.disk_usage(folder).free)))
                common = os.path.commonpath([os.path.normpath(name) for name in archive.getnames()] or ["."])
        except (tarfile.TarError, OSError, EOFError, zlib.error, LZMAError, KeyError, ValueError) as error:
            raise ValueError(f"archive {archive_file} is refused: {error}") from error
        content = folder / common
        path.rename(Path(beside, "archive"))
        (content if content.is_dir() else content.parent).rename(path)
    return str(path)

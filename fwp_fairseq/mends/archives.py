"""Unpacks an archive that is given to ``from_pretrained`` into a new folder, or refuses it and leaves it as it is.

fairseq unpacks any names in the archive, and moves their common prefix to the place of the archive.
"""

import os
import tarfile
import tempfile
import zlib
from lzma import LZMAError
from pathlib import Path

from fairseq import file_utils

from . import around


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """Returns a regular file, folder or hard link inside of ``folder``, without foreign owner and mode, or raises."""
    if member.name.startswith("/"):
        raise tarfile.AbsolutePathError(member)
    if ".." in Path(member.name).parts:
        raise tarfile.OutsideDestinationError(member, member.name)
    if member.issym():  # even of those that stay inside: by several of them others leave the folder
        raise tarfile.LinkOutsideDestinationError(member, member.linkname)
    return tarfile.data_filter(member, folder)


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
                archive.extractall(folder, filter=_inside)
                common = os.path.commonpath([os.path.normpath(name) for name in archive.getnames()] or ["."])
        except (tarfile.TarError, OSError, EOFError, zlib.error, LZMAError) as error:
            raise ValueError(f"archive {archive_file} is refused: {error}") from error
        content = folder / common
        path.rename(Path(beside, "archive"))
        (content if content.is_dir() else content.parent).rename(path)
    return str(path)

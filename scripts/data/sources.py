"""Gets texts from the folder FWP_DATA or by download, checked against pinned checksums."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from fwp_fairseq.files import write_atomically
from scripts.common.errors import RecipeError

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_DATA = "../shared/data"


@dataclass(frozen=True)
class Source:
    """A file that an experiment needs.

    Args:
        corpus: its folder in FWP_DATA, which may hold it packed as well, NAME.gz.
        url: where it is published; if this ends with .gz, it is unpacked.
        sha256: of its unpacked content, because the bytes of a .gz file depend on the program that packed it.
    """

    corpus: str
    url: str
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2].removesuffix(".gz")


def folder(corpus: str) -> Path:
    """Returns the folder that is searched first for the files of a corpus: in $FWP_DATA, else in ../shared/data."""
    return Path(os.environ.get("FWP_DATA") or ROOT / DEFAULT_DATA) / corpus


def unpacked(packed: bytes, source: object) -> bytes:
    """Returns the content of a .gz file. Raises RecipeError if it is damaged."""
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise RecipeError(f"{source}: not a complete gzip file ({error}); remove it or fetch it again") from None


def provide(source: Source, target: Path, say: Callable[[str], object]) -> None:
    """Writes ``target`` from FWP_DATA, else from a download, unless it is there with the right checksum.

    Raises RecipeError.
    """
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == source.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    local = folder(source.corpus) / source.name
    copy = next((path for path in (local.with_name(f"{local.name}.gz"), local) if path.is_file()), None)
    part = target.with_name(f"{target.name}.part")
    if copy is None:
        download(source.url, part, source.corpus, say)
    packed = copy.suffix == ".gz" if copy else source.url.endswith(".gz")
    where = copy or source.url
    try:
        content = (copy or part).read_bytes()
        content = unpacked(content, where) if packed else content
        actual = hashlib.sha256(content).hexdigest()
        if actual != source.sha256:
            raise RecipeError(
                f"{where}: sha256 of {source.name}: expected {source.sha256}, actual {actual}; nothing written"
            )
        write_atomically(target, content)
    finally:
        part.unlink(missing_ok=True)


def download(url: str, target: Path, corpus: str, say: Callable[[str], object]) -> None:
    """Downloads a file. Raises RecipeError, which says where to put the file instead."""
    from torch.hub import download_url_to_file  # torch takes seconds to import

    say(f"downloading {url}")
    try:
        download_url_to_file(url, str(target), progress=False)
    except (OSError, EOFError, HTTPException) as error:
        name = url.rpartition("/")[2]
        raise RecipeError(
            f"{name} is not here and could not be downloaded.\n  {url}: {error}\n"
            f"Put the file from there into {folder(corpus)}, or into DIR/{corpus} for a folder DIR of your choice, and "
            "set FWP_DATA=DIR; then run the same command."
        ) from None

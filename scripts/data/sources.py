"""Where texts come from: the folder FWP_DATA or a download, checked against pinned checksums. Standard library only."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq.files import write_atomically
from scripts.common.folder import RecipeError

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_DATA = "../shared/data"
BLOCK = 1 << 20
ATTEMPTS, PAUSE = 4, 2.0


class DataError(RecipeError):
    """A text cannot be provided; the message says what the user can do."""


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
    """The folder that is searched first for the files of a corpus: in $FWP_DATA, else in ../shared/data."""
    return Path(os.environ.get("FWP_DATA") or ROOT / DEFAULT_DATA) / corpus


def unpacked(packed: bytes, source: object) -> bytes:
    """Returns the content of a .gz file. Raises DataError if it is damaged."""
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source}: not a complete gzip file ({error}); remove it or fetch it again") from None


def digest(path: Path, kind: str = "sha256") -> str:
    found = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def provide(source: Source, target: Path, say: Callable[[str], object]) -> bool:
    """Writes ``target`` from FWP_DATA, else from a download; returns False if it is there with the right checksum.

    A download that was interrupted goes on where it stopped. Raises DataError.
    """
    if target.is_file() and digest(target) == source.sha256:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    local = folder(source.corpus) / source.name
    found = next((path for path in (local.with_name(f"{local.name}.gz"), local) if path.is_file()), None)
    part = target.with_name(f"{target.name}.part")
    if found is None:
        download(source.url, part, say, _by_hand(source))
    packed = found.suffix == ".gz" if found else source.url.endswith(".gz")
    where = found or source.url
    try:
        content = (found or part).read_bytes()
        content = unpacked(content, where) if packed else content
        actual = hashlib.sha256(content).hexdigest()
        if actual != source.sha256:
            raise DataError(
                f"{where}: sha256 of {source.name}: expected {source.sha256}, actual {actual}; nothing written"
            )
        write_atomically(target, content)
    finally:
        part.unlink(missing_ok=True)  # a wrong one too, so that the next call begins anew
    return True


def _by_hand(source: Source) -> str:
    return (
        f"Put the file from there, or {source.name}.gz of it, into {folder(source.corpus)}, or into "
        f"DIR/{source.corpus} for a folder DIR of your choice, and set FWP_DATA=DIR; then run the same command."
    )


def download(url: str, part: Path, say: Callable[[str], object], by_hand: str) -> None:
    """Downloads a file, or the rest of it; tries again if the network fails. In the end raises DataError."""
    say(f"downloading {url}" + (f", continuing after {part.stat().st_size:,} bytes" if part.exists() else ""))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _go_on(url, part)
        except urllib.error.HTTPError as error:
            problem, final = error, error.code in (401, 403, 404, 410)
        except (OSError, http.client.HTTPException) as error:
            problem, final = error, False
        if final or attempt == ATTEMPTS:
            name = url.rpartition("/")[2]
            raise DataError(f"{name} is not here and could not be downloaded.\n  {url}: {problem}\n{by_hand}")
        say(f"  {problem}; trying again ({attempt} of {ATTEMPTS - 1})")
        time.sleep(PAUSE * attempt)


def _go_on(url: str, part: Path) -> None:
    """Appends to ``part`` what it lacks, or begins anew where the server sends the whole."""
    size = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    received = 0
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there are no bytes behind those that are here
            return
        raise
    with response:
        expected = response.headers.get("Content-Length")
        mode = "ab" if size and response.status == 206 else "wb"
        with open(part, mode) as file:
            while block := response.read(BLOCK):
                file.write(block)
                received += len(block)
    if expected is not None and received != int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - received)

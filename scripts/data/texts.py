"""Provides the raw texts of the language models: checked against pinned checksums, local or downloaded."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq.files import write_atomically

from .sources import BLOCK, DataError, digest, download, folder, unpacked


@dataclass(frozen=True)
class Source:
    """A file that a recipe needs.

    Args:
        corpus: its folder in FWP_DATA.
        url: where it is published.
        sha256: of its content. ``FWP_DATA`` may hold it packed as well, NAME.gz.
    """

    corpus: str
    url: str
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


_WIKITEXT2 = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2"
TINY_SHAKESPEARE = Source(
    "tinyshakespeare",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
WIKITEXT2_VALID = Source(
    "wikitext2", f"{_WIKITEXT2}/valid.txt", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"
)
WIKITEXT2_TEST = Source(
    "wikitext2", f"{_WIKITEXT2}/test.txt", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"
)
# The server of its first author; the address of the publication no longer answers. The checksum is of either.
WIKITEXT103 = Source(
    "wikitext103",
    "https://wikitext.smerity.com/wikitext-103-v1.zip",
    "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
)


def provide(source: Source, target: Path, say: Callable[[str], object]) -> None:
    """Writes ``target``, unless it is there with the right checksum: from FWP_DATA, else downloaded. Raises DataError.

    A download that was interrupted goes on where it stopped.
    """
    if target.is_file() and digest(target) == source.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    local = folder(source.corpus) / source.name
    packed = local.with_name(f"{local.name}.gz")
    if packed.is_file() or local.is_file():
        found = packed if packed.is_file() else local
        content = unpacked(packed.read_bytes(), packed) if found is packed else local.read_bytes()
        _check(hashlib.sha256(content).hexdigest(), source, found)
        write_atomically(target, content)
    else:
        part = target.with_name(f"{target.name}.part")
        _download(source, part, say)
        actual = digest(part)
        if actual != source.sha256:
            part.unlink()  # so that the next call begins anew
        _check(actual, source, source.url)
        part.replace(target)


def _check(actual: str, source: Source, where: object) -> None:
    if actual != source.sha256:
        raise DataError(f"{where}: sha256 of {source.name}: expected {source.sha256}, actual {actual}; nothing written")


def _download(source: Source, part: Path, say: Callable[[str], object]) -> None:
    def missing(problem: Exception) -> str:
        return (
            f"{source.name} of {source.corpus} is not on this machine and could not be downloaded.\n"
            f"  {source.url}: {problem}\n"
            f"Put the file from there, or {source.name}.gz of it, into {folder(source.corpus)}, or into "
            f"DIR/{source.corpus} for a folder DIR of your choice, and set FWP_DATA=DIR; then run the same command."
        )

    say(f"downloading {source.url}")
    download(lambda: _go_on(source.url, part), missing, say)


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

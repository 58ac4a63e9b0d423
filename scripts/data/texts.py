"""Provides the raw texts of the language models: checked against pinned checksums, local or downloaded."""

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

from .multi30k import DEFAULT_DATA, ROOT

_BLOCK = 1 << 20


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


class DataError(RecipeError):
    """A text cannot be provided; the message says what the user can do."""


def _folder(corpus: str) -> Path:
    return Path(os.environ.get("FWP_DATA") or ROOT / DEFAULT_DATA) / corpus


def provide(source: Source, target: Path, say: Callable[[str], object]) -> None:
    """Writes ``target``, unless it is there with the right checksum: from FWP_DATA, else downloaded. Raises DataError.

    A download that was interrupted goes on where it stopped.
    """
    if target.is_file() and _sha256(target) == source.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    local = _folder(source.corpus) / source.name
    packed = local.with_name(f"{local.name}.gz")
    if packed.is_file():
        try:
            content = gzip.decompress(packed.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{packed}: not a complete gzip file ({error}); remove it or fetch it again") from None
        _check(hashlib.sha256(content).hexdigest(), source, packed)
        write_atomically(target, content)
    elif local.is_file():
        _check(_sha256(local), source, local)
        write_atomically(target, local.read_bytes())
    else:
        part = target.with_name(f"{target.name}.part")
        _download(source, part, say)
        actual = _sha256(part)
        if actual != source.sha256:
            part.unlink()  # so that the next call begins anew
        _check(actual, source, source.url)
        part.replace(target)


def _check(actual: str, source: Source, where: object) -> None:
    if actual != source.sha256:
        raise DataError(f"{where}: sha256 of {source.name}: expected {source.sha256}, actual {actual}; nothing written")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _download(source: Source, part: Path, say, attempts: int = 4, pause: float = 2.0) -> None:
    say(f"downloading {source.url}")
    for attempt in range(1, attempts + 1):
        try:
            return _go_on(source.url, part)
        except urllib.error.HTTPError as error:
            problem, final = error, error.code in (401, 403, 404, 410)
            if error.code == 416:  # there are no bytes behind those that are here
                return None
        except (OSError, http.client.HTTPException) as error:
            problem, final = error, False
        if final or attempt == attempts:
            raise DataError(
                f"{source.name} of {source.corpus} is not on this machine and could not be downloaded.\n"
                f"  {source.url}: {problem}\n"
                f"Put the file from there, or {source.name}.gz of it, into {_folder(source.corpus)}, or into "
                f"DIR/{source.corpus} for a folder DIR of your choice, and set FWP_DATA=DIR; then run the same command."
            )
        say(f"  {problem}; trying again ({attempt} of {attempts - 1})")
        time.sleep(pause * attempt)


def _go_on(url: str, part: Path) -> None:
    """Appends to ``part`` what it lacks, or begins anew where the server sends the whole."""
    size = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    received = 0
    with urllib.request.urlopen(request, timeout=30) as response:
        expected = response.headers.get("Content-Length")
        mode = "ab" if size and response.status == 206 else "wb"
        with open(part, mode) as file:
            while block := response.read(_BLOCK):
                file.write(block)
                received += len(block)
    if expected is not None and received != int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - received)

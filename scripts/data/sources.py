"""Where texts come from: the folder FWP_DATA or a download, and what is checked of them. Standard library only."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import time
import urllib.error
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from scripts.common.folder import RecipeError

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_DATA = "../shared/data"
BLOCK = 1 << 20
ATTEMPTS, PAUSE = 4, 2.0
T = TypeVar("T")


class DataError(RecipeError):
    """A text cannot be provided; the message says what the user can do."""


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


def download(fetch: Callable[[], T], missing: Callable[[Exception], str], say: Callable[[str], object]) -> T:
    """Returns fetch(), which is tried again if the network fails; in the end raises DataError with missing(problem)."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return fetch()
        except urllib.error.HTTPError as error:
            problem, final = error, error.code in (401, 403, 404, 410)
        except (OSError, http.client.HTTPException) as error:
            problem, final = error, False
        if final or attempt == ATTEMPTS:
            raise DataError(missing(problem))
        say(f"  {problem}; trying again ({attempt} of {ATTEMPTS - 1})")
        time.sleep(PAUSE * attempt)
    raise AssertionError("unreachable")

#!/usr/bin/env python3
"""Provides the raw text of Multi30k English-German (29 000 training pairs, test_2016_flickr).

Every file, from whichever source, is verified against a pinned checksum of its uncompressed content before it is
written to the output folder. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from fwp_fairseq.files import write_atomically
from scripts.data.sources import DEFAULT_DATA, DataError, download, folder, unpacked

CORPUS = "multi30k"
URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
SPLITS = {"train": 29000, "val": 1014, "test_2016_flickr": 1000}
LANGUAGES = ("en", "de")

# Checksums of the uncompressed text, because the bytes of a .gz file depend on the program that packed it.
SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
}


def provide(destination: Path, say: Callable[[str], object] = print) -> list[str]:
    """Writes every text of SHA256 into `destination` and returns the names of those that had to be fetched.

    A text that exists there with the right checksum is kept, so an interrupted call can be continued. Raises DataError.
    """
    destination.mkdir(parents=True, exist_ok=True)
    local_folder = folder(CORPUS)
    url = os.environ.get("FWP_MULTI30K_URL") or URL
    fetched = []
    for name, checksum in SHA256.items():
        target = destination / name
        if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == checksum:
            continue
        local = local_folder / f"{name}.gz"
        if local.is_file():
            source = str(local)
            packed = local.read_bytes()
        else:
            source = f"{url}/{name}.gz"
            say(f"downloading {source}")
            packed = download(partial(_read, source), partial(_missing, source), say)
        write_atomically(target, _unpack(packed, checksum, source))
        fetched.append(name)
    return fetched


def _unpack(packed: bytes, checksum: str, source: str) -> bytes:
    text = unpacked(packed, source)
    actual = hashlib.sha256(text).hexdigest()
    if actual != checksum:
        raise DataError(
            f"{source}: sha256 of the uncompressed text: expected {checksum}, actual {actual}. "
            "This is not the Multi30k file with which this project was measured; it was not written."
        )
    return text


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read()


def _missing(url: str, problem: Exception) -> str:
    names = "\n".join(f"    {name}.gz" for name in SHA256)
    return f"""Multi30k is not on this machine and could not be downloaded.
  {url}: {problem}
By hand:
  1. On a machine with a network, get these files from {URL}
{names}
  2. Put them into {folder(CORPUS)}
     or into DIR/multi30k for a folder DIR of your choice, and set FWP_DATA=DIR
     (now: FWP_DATA={os.environ.get("FWP_DATA") or f"unset, which means {DEFAULT_DATA} beside the repository"}).
  3. Run the same command again. Behind a mirror, FWP_MULTI30K_URL names the folder to download from."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Provide Multi30k English-German as plain text: train, val and test_2016_flickr, .en and .de.",
        epilog="The packed files are taken from $FWP_DATA/multi30k (default ../shared/data/multi30k beside the "
        f"repository) when there, else downloaded from {URL}. Checksums are verified either way.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the six texts into")
    arguments = parser.parse_args(argv)
    try:
        fetched = provide(arguments.out)
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out}: {len(SHA256)} texts verified, {len(fetched)} newly written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

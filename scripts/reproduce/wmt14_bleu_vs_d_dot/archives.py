"""The archives of WMT14 English-German: where they are, fetching them, checking them, the texts in them."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import re
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq.files import write_atomically
from scripts.common.folder import RecipeError

LANGUAGES = ("en", "de")
LOCK = "archives.sha256.json"


@dataclass(frozen=True)
class Archive:
    """`members`: text to {language: names that it may have in the archive}; `lines`: of a text, `md5`: of the archive,
    where published."""

    url: str
    members: dict[str, dict[str, tuple[str, ...]]]
    lines: int | None
    md5: str | None = None

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def _parallel(text: str, path: str) -> dict:
    return {text: {language: (f"{path}.{language}",) for language in LANGUAGES}}


def _news_commentary(version: str, url: str, lines: int | None) -> Archive:
    name = f"news-commentary-{version}"
    return Archive(f"{url}/training-parallel-nc-{version}.tgz", _parallel(name, f"training/{name}.de-en"), lines)


# The URLs are those of fairseq's examples/translation/prepare-wmt14en2de.sh. Lines: as published for WMT14 by
# statmt.org; for News Commentary v12 we know no published number.
EUROPARL = Archive(
    "http://statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    _parallel("europarl-v7", "training/europarl-v7.de-en"),
    1920209,
)
COMMON_CRAWL = Archive(
    "http://statmt.org/wmt13/training-parallel-commoncrawl.tgz", _parallel("commoncrawl", "commoncrawl.de-en"), 2399123
)
NEWS_COMMENTARY = {
    "v12": _news_commentary("v12", "http://data.statmt.org/wmt17/translation-task", None),
    "v9": _news_commentary("v9", "http://statmt.org/wmt14", 201288),
}
DEV = Archive(
    "http://data.statmt.org/wmt17/translation-task/dev.tgz",
    {
        "newstest2013": {
            "en": ("dev/newstest2013.en", "dev/newstest2013-src.en.sgm"),
            "de": ("dev/newstest2013.de", "dev/newstest2013-ref.de.sgm"),
        }
    },
    3000,
)
TEST = Archive(
    "http://statmt.org/wmt14/test-full.tgz",
    {
        "newstest2014": {
            "en": ("test-full/newstest2014-deen-src.en.sgm",),
            "de": ("test-full/newstest2014-deen-ref.de.sgm",),
        }
    },
    3003,
    "a8cd784e006feb32ac6f3d9ec7eb389a",  # sacreBLEU's, of its test set wmt14/full
)


def training(news_commentary: str) -> list[Archive]:
    return [EUROPARL, COMMON_CRAWL, NEWS_COMMENTARY[news_commentary]]


def fetch(archive: Archive, folder: Path, say: Callable[[str], object]) -> str:
    """Downloads what is not in `folder` yet, from where an earlier call stopped; returns the sha256.

    statmt.org publishes no checksums: that of the first download is kept in LOCK and must not change later.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = _lock(folder)
    target, part = folder / archive.file, folder / f"{archive.file}.part"
    if not target.exists():
        if not (part.exists() and _is_whole(part)):
            _download(archive.url, part, say)
        part.rename(target)
    elif not _is_whole(target):
        raise RecipeError(f"{target} is no whole .tgz; remove it and run the same command again")
    return _checked(archive, known, folder, target)


def _download(url: str, part: Path, say: Callable[[str], object]) -> None:
    """What is there already is continued; from the start where that leads to no whole archive."""
    if part.exists():
        say(f"downloading {url}, from {part.stat().st_size:,} bytes on")
        status, answer = _curl(url, part)
        if status == 0 and _is_whole(part):
            return
        # curl's 33 and 36: the server sends no ranges, or not the one asked for; HTTP's 416: there is no such range.
        if status in (0, 33, 36) or answer == "416":
            say("what was there cannot be continued")
            part.unlink()
    if not part.exists():
        say(f"downloading {url}")
        status, _ = _curl(url, part)
    if status == 0 and not _is_whole(part):
        part.unlink()
        raise RecipeError(f"{url}: what came is no whole .tgz and is removed; run the same command again")
    if status:
        raise RecipeError(
            f"{url}: curl failed with status {status}. The same command continues; or put {part.stem} into "
            f"{part.parent} by hand."
        )


def _curl(url: str, part: Path) -> tuple[int, str]:
    """Its exit status, and that of the server's answer."""
    command = ["curl", "--fail", "--location", "--retry", "5", "--continue-at", "-", "--write-out", "%{http_code}"]
    try:
        done = subprocess.run([*command, "--output", str(part), url], stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout
    except FileNotFoundError:
        raise RecipeError("curl is not installed") from None


def _is_whole(path: Path) -> bool:
    """Whether every byte can be unpacked; gzip holds a checksum of its own, at the end."""
    try:
        with gzip.open(path) as file:
            with tarfile.open(fileobj=file, mode="r|") as tar:
                for _ in tar:
                    pass
            while file.read(1 << 20):
                pass
        return True
    except (tarfile.TarError, OSError, EOFError, zlib.error):
        return False


def _lock(folder: Path) -> dict[str, str]:
    """Address to sha256."""
    file = folder / LOCK
    try:
        known = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise RecipeError(f"{file} is no JSON object; restore it, or remove it if the archives there are to be trusted")
    return known


def _checked(archive: Archive, known: dict[str, str], folder: Path, target: Path) -> str:
    lock = folder / LOCK
    if archive.md5 is not None and (actual := _digest(target, "md5")) != archive.md5:
        raise RecipeError(f"{target}: md5 expected {archive.md5} (sacreBLEU's), actual {actual}; remove the archive")
    actual = _digest(target, "sha256")
    expected = known.setdefault(archive.url, actual)
    if expected != actual:
        raise RecipeError(
            f"{target}: sha256 expected {expected} (of the first download, in {lock}), actual {actual}. "
            f"Remove the archive to fetch it again, or its line of the lock if the new one is to be trusted."
        )
    write_atomically(lock, json.dumps(known, indent=2) + "\n")
    return actual


def _digest(path: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def extract(archive: Archive, folder: Path, raw: Path, trust_any_size: bool = False) -> dict[str, int]:
    """Writes the archive's texts to raw/TEXT.LANGUAGE, one sentence a line; returns their numbers of lines.

    Raises RecipeError when a text is missing or is none, when its sides differ in length, or when its length is not the
    published one.
    """
    raw.mkdir(parents=True, exist_ok=True)
    found = {}
    with tarfile.open(folder / archive.file) as tar:
        names = set(tar.getnames())
        for text, sides in archive.members.items():
            counts = {}
            for language, candidates in sides.items():
                name = next((name for name in candidates if name in names), None)
                if name is None:
                    raise RecipeError(f"{archive.file} holds none of {', '.join(candidates)}")
                content = _text(archive, tar.getmember(name), tar)
                if name.endswith(".sgm"):
                    content = _segments(content.decode()).encode()
                write_atomically(raw / f"{text}.{language}", content)
                counts[language] = content.count(b"\n")
            if len(set(counts.values())) > 1:
                raise RecipeError(f"{archive.file}: the sides of {text} differ in length: {counts}")
            found[text] = counts["en"]
            if archive.lines is not None and found[text] != archive.lines and not trust_any_size:
                raise RecipeError(
                    f"{archive.file}: {text} has {found[text]:,} lines, expected the published {archive.lines:,}; "
                    "--any-size goes on with it all the same"
                )
    return found


def _text(archive: Archive, member: tarfile.TarInfo, tar: tarfile.TarFile) -> bytes:
    if not member.isreg():
        raise RecipeError(f"{archive.file}: expected {member.name} to be a file, not a link, folder or pipe")
    content = tar.extractfile(member).read()
    try:
        for _ in codecs.iterdecode((content[n : n + (1 << 20)] for n in range(0, len(content), 1 << 20)), "utf-8"):
            pass
    except UnicodeDecodeError as error:
        raise RecipeError(f"{archive.file}: {member.name} is not UTF-8 text: {error.reason}") from None
    return content


def _segments(sgm: str) -> str:
    # Entities stay as they are, as in sacreBLEU's own copy of these sets.
    segments = re.findall(r"<seg[^>]*>(.*?)</seg>", sgm, re.DOTALL)
    return "".join(" ".join(segment.split()) + "\n" for segment in segments)

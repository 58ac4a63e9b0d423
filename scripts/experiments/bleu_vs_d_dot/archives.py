"""Downloads the archives of WMT14 English-German and IWSLT14 German-English, checks them and extracts their texts."""

from __future__ import annotations

import codecs
import gzip
import re
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq.files import write_atomically
from scripts.common.folder import RecipeError
from scripts.data.sources import digest, download

LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class Archive:
    """An archive and what is known of it.

    - `members`: for each text and language, the names that the file may have in the archive.
    - `lines`: the published number of lines of each text, None if there is none.
    - `md5`: the published checksum of the archive, None if there is none.
    """

    url: str
    members: dict[str, dict[str, tuple[str, ...]]]
    lines: int | None
    md5: str | None = None

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def _parallel(text: str, path: str) -> dict:
    return {text: {language: (f"{path}.{language}",) for language in LANGUAGES}}


# The URLs are those of fairseq's examples/translation/prepare-wmt14en2de.sh. The numbers of lines are those that
# statmt.org publishes for WMT14; we know of none for News Commentary v12.
EUROPARL = Archive(
    "http://statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    _parallel("europarl-v7", "training/europarl-v7.de-en"),
    1920209,
)
COMMON_CRAWL = Archive(
    "http://statmt.org/wmt13/training-parallel-commoncrawl.tgz", _parallel("commoncrawl", "commoncrawl.de-en"), 2399123
)
NEWS_COMMENTARY = Archive(
    "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
    _parallel("news-commentary-v12", "training/news-commentary-v12.de-en"),
    None,
)
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
    "a8cd784e006feb32ac6f3d9ec7eb389a",  # what sacreBLEU expects for its test set wmt14/full
)


def _iwslt14(name: str) -> dict[str, tuple[str, ...]]:
    """Returns, for each language, the names of a file in the archive of IWSLT14; a tar may write them with ./"""
    found = {language: f"de-en/{name.format(language)}" for language in LANGUAGES}
    return {language: (path, f"./{path}") for language, path in found.items()}


# The archive of fairseq's examples/translation/prepare-iwslt14.sh, a copy of WIT3's for IWSLT 2014. We know of no
# published checksum. fairseq's test set consists of these development and test sets.
IWSLT14_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
IWSLT14 = Archive(
    "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    {
        "train": _iwslt14("train.tags.de-en.{}"),
        **{text: _iwslt14(f"IWSLT14.{text}.de-en.{{}}.xml") for text in IWSLT14_TESTS},
    },
    None,
)


def fetch(archive: Archive, folder: Path, say: Callable[[str], object]) -> str:
    """Downloads the archive unless it is in `folder`, continuing an earlier download; returns its sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / archive.file, folder / f"{archive.file}.part"
    if not target.exists():
        if not (part.exists() and _is_complete(part)):
            download(archive.url, part, say, f"You can also put {archive.file} into {folder} by hand.")
            if not _is_complete(part):
                part.unlink()
                raise RecipeError(f"{archive.url}: not a complete .tgz, removed; run the same command again")
        part.rename(target)
    elif not _is_complete(target):
        raise RecipeError(f"{target} is not a complete .tgz; remove it and run the same command again")
    if archive.md5 is not None and (actual := digest(target, "md5")) != archive.md5:
        raise RecipeError(f"{target}: md5 expected {archive.md5} (sacreBLEU's), actual {actual}; remove the archive")
    return digest(target, "sha256")


def _is_complete(path: Path) -> bool:
    """Says whether the whole .tgz can be unpacked; gzip has a checksum at its end."""
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


def extract(archive: Archive, folder: Path, raw: Path) -> dict[str, int]:
    """Writes the archive's texts to raw/TEXT.LANGUAGE, one sentence a line; returns the number of lines of each text.

    Raises RecipeError if a text is missing or is not UTF-8, if its two sides differ in length, or if it does not have
    the published number of lines.
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
                if name.endswith((".sgm", ".xml")):
                    content = _segments(content.decode()).encode()
                elif "/train.tags." in name:
                    content = _untagged(content.decode()).encode()
                write_atomically(raw / f"{text}.{language}", content)
                counts[language] = content.count(b"\n")
            if len(set(counts.values())) > 1:
                raise RecipeError(f"{archive.file}: the sides of {text} differ in length: {counts}")
            found[text] = counts["en"]
            if archive.lines is not None and found[text] != archive.lines:
                raise RecipeError(
                    f"{archive.file}: {text} has {found[text]:,} lines, expected the published {archive.lines:,}"
                )
    return found


def _text(archive: Archive, member: tarfile.TarInfo, tar: tarfile.TarFile) -> bytes:
    """Returns the content of a member, which must be a file of UTF-8 text."""
    if not member.isreg():
        raise RecipeError(f"{archive.file}: expected {member.name} to be a file, not a link, folder or pipe")
    content = tar.extractfile(member).read()
    try:
        for _ in codecs.iterdecode((content[n : n + (1 << 20)] for n in range(0, len(content), 1 << 20)), "utf-8"):
            pass
    except UnicodeDecodeError as error:
        raise RecipeError(f"{archive.file}: {member.name} is not UTF-8 text: {error.reason}") from None
    return content


def join(texts: tuple[str, ...], raw: Path, name: str) -> int:
    """Writes the texts, one after another, to raw/NAME.LANGUAGE; returns the number of lines."""
    for language in LANGUAGES:
        content = b"".join((raw / f"{text}.{language}").read_bytes() for text in texts)
        write_atomically(raw / f"{name}.{language}", content)
    return content.count(b"\n")


def _untagged(text: str) -> str:
    """Returns the sentences of a training file of WIT3, one a line, as fairseq's prepare-iwslt14.sh selects them.

    Lines about a talk are left out, except for its title and its description.
    """
    kept = (
        line
        for line in text.removesuffix("\n").split("\n")
        if not any(tag in line for tag in ("<url>", "<talkid>", "<keywords>"))
    )
    return "".join(re.sub("</?(title|description)>", "", line).strip() + "\n" for line in kept)


def _segments(sgm: str) -> str:
    """Returns the sentences of an SGML or XML file, one a line.

    Entities are kept, as in sacreBLEU's copy of WMT14 and in fairseq's preparation of IWSLT14.
    """
    segments = re.findall(r"<seg[^>]*>(.*?)</seg>", sgm, re.DOTALL)
    return "".join(" ".join(segment.split()) + "\n" for segment in segments)

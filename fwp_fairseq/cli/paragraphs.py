"""The lines and paragraphs of a text, in passages that a model can translate."""

import argparse
import codecs
import gzip
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import TypeVar

from ..text import about_mark, decoded
from .errors import CommandError

Part = TypeVar("Part")
_UNDECIDED = 2  # sentences at the end of an incomplete text, whose ends may depend on what follows
# Spaces that end a clause or a sentence where Unicode's rules see none: in Thai, Lao and Tibetan, which have no full
# stop, and behind the question mark of Greek, which looks like a semicolon.
_CLAUSE = re.compile(r"(?<=[\u0e00-\u0fff])\s+(?=[\u0e00-\u0fff])|(?<=[\u0370-\u03ff\u1f00-\u1fff][;\u037e])\s+")
# Characters of Chinese and Japanese, with their punctuation: no space stands behind one.
_UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_CLOSING = "\u2019\u201d\u2014\u2026"  # quotation marks, dash and ellipsis, which Chinese shares with other scripts


def add_passage(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds ``--passage N`` with this help, also by the name that it had before 0.3.0."""
    parser.add_argument("--passage", type=int, metavar="N", help=text)
    parser.add_argument("--window", dest="passage", type=int, help=argparse.SUPPRESS)


def lines_of(text: bytes, source: object) -> list[str]:
    """Returns the lines of UTF-8 text, without a byte order mark, which would be a word.

    Raises CommandError, which names the line, for text that is not UTF-8.
    """
    lines = text.removesuffix(b"\n").split(b"\n") if text else []
    try:
        return [decoded(line, source, number).rstrip("\r") for number, line in enumerate(lines, 1)]
    except ValueError as error:
        raise CommandError(str(error)) from None


def read_lines(path: str | Path) -> list[str]:
    """Returns the lines of a file of UTF-8, compressed if its name ends with .gz; CommandError says what is wrong.

    As in sacreBLEU's own command, only \\n ends a line.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CommandError(f"{path}: expected gzip, as its name says: {error}") from None
    if content.startswith(codecs.BOM_UTF8):
        print(about_mark(path), file=sys.stderr)
    return lines_of(content, path)


def count_words(text: str) -> int:
    """Counts the words that Unicode's rules delimit (UAX 29), with ICU's dictionaries for scripts without spaces."""
    from icu4py.breakers import WordBreaker

    return sum(any(map(str.isalnum, segment)) for segment in WordBreaker(text, "en"))


def gap(text: str) -> str:
    """Returns what stands between a text and the next one: no space after a Chinese or Japanese character.

    Quotation marks, dashes and ellipses count as the character before them.
    """
    last = (text.rstrip(_CLOSING) or text)[-1:]
    return "" if not last or _UNSPACED.fullmatch(last) else " "


def joined(texts: Iterable[str]) -> str:
    """Joins texts with spaces; none follows a text that ends with a Chinese or Japanese character."""
    return "".join(text + gap(text) for text in texts).strip()


def _sentences(text: str) -> list[str]:
    """Divides a text at the ends of sentences by Unicode's rules (UAX 29), and at others that these miss."""
    from icu4py.breakers import SentenceBreaker

    sentences, opening = [], ""
    for sentence in SentenceBreaker(text, "en"):
        sentence = opening + sentence
        # An opening mark directly after a full stop begins the next sentence; UAX 29 takes it for a closing one.
        end = len(sentence)
        while end and unicodedata.category(sentence[end - 1]) in ("Ps", "Pi"):
            end -= 1
        opening = sentence[end:]
        sentences.append(sentence[:end])
    sentences.append(opening)
    parts = chain.from_iterable(map(_CLAUSE.split, sentences))
    return [part.strip() for part in parts if part.strip()]


def filled(parts: Iterable[Part], words: Callable[[Part], int], most: int) -> Iterator[list[Part]]:
    """Groups consecutive parts that have at most ``most`` words together; one that has more is a group of its own."""
    group: list[Part] = []
    count = 0
    for part in parts:
        more = words(part)
        if group and count + more > most:
            yield group
            group, count = [], 0
        group.append(part)
        count += more
    if group:
        yield group


def passages(paragraph: str, words: int) -> list[str]:
    """Divides a paragraph at ends of sentences into passages of at most ``words`` words, or of one longer sentence."""
    return [joined(few) for few in filled(_sentences(paragraph), count_words, words)]


class Passages:
    """Divides paragraphs at ends of sentences into passages of at most ``words`` words, or of one longer sentence.

    A paragraph is the lines between empty ones; each empty line stays, as an empty paragraph. A passage is complete as
    soon as no later line can change it, so that the memory does not grow with the paragraph.
    """

    def __init__(self, words: int):
        self._words, self._text = words, ""  # the part of a paragraph that is in no passage yet

    def take(self, lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Yields the passages that are complete with these lines, each with True if it is the last of its paragraph."""
        for has_text, group in groupby(map(str.strip, lines), bool):
            if has_text:
                self._text = joined([self._text, *group])
                yield from self._complete()
            else:
                yield from self.end()
                yield from (("", True) for _ in group)

    def _complete(self) -> Iterator[tuple[str, bool]]:
        sentences = _sentences(self._text)
        used = 0
        for few in filled(sentences, count_words, self._words):
            if used + len(few) > len(sentences) - _UNDECIDED:
                break
            yield joined(few), False
            used += len(few)
        self._text = joined(sentences[used:])

    def end(self) -> Iterator[tuple[str, bool]]:
        """Yields the passages that are left of the paragraph, which ends here."""
        rest = passages(self._text, self._words) if self._text else []
        self._text = ""
        yield from ((passage, number == len(rest)) for number, passage in enumerate(rest, 1))

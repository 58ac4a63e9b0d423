"""The lines and paragraphs of a text, in windows that a model can translate."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from ..text import decoded
from .errors import CommandError

Part = TypeVar("Part")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[。！？”’」』）]*\s*")
# Characters of Chinese and Japanese, with their punctuation: no space stands behind one.
_UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


def lines_of(text: bytes, source: object) -> list[str]:
    """Returns the lines of UTF-8 without a byte order mark, which would be a word; CommandError names any other one."""
    lines = text.removesuffix(b"\n").split(b"\n") if text else []
    try:
        return [decoded(line, source, number).rstrip("\r") for number, line in enumerate(lines, 1)]
    except ValueError as error:
        raise CommandError(str(error)) from None


def count_words(text: str) -> int:
    """The words between spaces; of Chinese and Japanese, which have none, two characters count as a word."""
    spaced, characters = _UNSPACED.subn(" ", text)
    return len(spaced.split()) + (characters + 1) // 2


def joined(texts: Iterable[str]) -> str:
    """Joins texts with spaces; none follows a text that ends with a Chinese or Japanese character."""
    return "".join(text if _UNSPACED.fullmatch(text[-1:]) else f"{text} " for text in texts).strip()


def _sentences(text: str) -> list[str]:
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    return [text[a:b].strip() for a, b in zip([0, *ends], [*ends, len(text)], strict=True) if text[a:b].strip()]


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


def windows(paragraph: str, words: int) -> list[str]:
    """Divides a paragraph at ends of sentences into windows of at most ``words`` words, or of one longer sentence."""
    return [joined(few) for few in filled(_sentences(paragraph), count_words, words)]


def paragraphs(lines: list[str]) -> list[str]:
    """Joins the lines between empty ones; each empty line stays, as an empty paragraph."""
    found: list[str] = []
    for has_text, group in groupby(map(str.strip, lines), bool):
        texts = list(group)
        found += [joined(texts)] if has_text else texts
    return found

"""Reads the lines of a stream in blocks without waiting for a block to be full. Standard library only."""

import select
import time
from collections.abc import Iterator
from typing import BinaryIO

from ..files import named
from ..text import decoded
from .errors import CommandError

_LINES, _BYTES = 2000, 2**20  # a block ends with the line that reaches either number
_PAUSE, _PATIENCE = 0.05, 0.2  # seconds: between two lines of a block, and from its first line to its last
_CHUNK = 2**16


def _lines(file: BinaryIO, source: str) -> Iterator[bytes | None]:
    """Yields each line as soon as it arrives, without its end, and None when the stream pauses."""
    parts: list[bytes] = []  # of the line that has not ended
    while True:
        if not select.select([file], [], [], _PAUSE)[0]:
            yield None
            select.select([file], [], [])
        with named(source):
            chunk = file.read1(_CHUNK)
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for part in others:
            yield b"".join(parts)
            parts = [part]
    if last := b"".join(parts):
        yield last


def blocks(file: BinaryIO, source: str) -> Iterator[list[str]]:
    """Yields blocks of lines of UTF-8 text: up to 2,000 lines, fewer if the stream pauses.

    A line is yielded at most 0.2 s after it arrives. Memory is needed for one block and the longest line. If a line is
    not UTF-8, yields the lines before it, and then raises CommandError, which names the line.
    """
    block: list[str] = []
    size = number = 0
    begin = 0.0
    for line in _lines(file, source):
        if line is not None:
            number += 1
            try:
                text = decoded(line, source, number).rstrip("\r")
            except ValueError as error:
                yield block
                raise CommandError(str(error)) from None
            begin = begin if block else time.monotonic()
            block.append(text)
            size += len(line)
        full = len(block) == _LINES or size >= _BYTES or time.monotonic() > begin + _PATIENCE
        if block and (line is None or full):
            yield block
            block, size = [], 0
    if block:
        yield block

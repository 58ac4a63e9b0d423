"""Reads the lines of a stream in blocks, and waits for no more of them than have come. Standard library only."""

import select
import time
from collections.abc import Iterator
from typing import BinaryIO

from ..files import named
from ..text import decoded
from .errors import CommandError

_LINES, _BYTES = 2000, 2**20  # of a block, which ends with the line that reaches either
_PAUSE, _PATIENCE = 0.05, 0.2  # seconds: between two lines of a block, and from its first line to its last
_CHUNK = 2**16


def _lines(file: BinaryIO, source: str) -> Iterator[bytes | None]:
    """Yields each line when it has come, without its end, and None when the next part of the stream has not come."""
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
    """Yields the lines of UTF-8 text, at most 2,000 at a time, or as many as have come before the stream pauses.

    A line of a slow stream is yielded at most 0.2 s after it has come, and lines of a fast one in full blocks. The
    memory is that of a block and of the longest line. Raises CommandError that names a line that is not UTF-8, after
    the lines before it.
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

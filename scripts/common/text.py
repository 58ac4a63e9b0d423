"""What programs print."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prints a line at once, as a whole: several runs may do so at a time."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def in_columns(lines: list[list[str]]) -> list[str]:
    """Returns a text for each line of cells: each column as wide as its widest cell, with two spaces between."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]

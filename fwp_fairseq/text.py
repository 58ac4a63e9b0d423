"""Reads text of users' files and prints it to them. Standard library only."""

from collections.abc import Callable

_MARK = "\ufeff"  # the byte order mark that editors put before UTF-8; it is no part of the text


def without_mark(line: str, source: str, warn: Callable[[str], object]) -> str:
    """The first line of ``source`` without a byte order mark; warns if it had one."""
    if line.startswith(_MARK):
        warn(f"{source} begins with a byte order mark, which was left out")
    return line.removeprefix(_MARK)


def printable(text: object) -> str:
    """Text of a file with control characters escaped, so that it stays one line and a terminal obeys none of it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def duration(seconds: float) -> str:
    if seconds < 6000:
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} hours"

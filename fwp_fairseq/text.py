"""Reads text of users' files and prints it to them. Standard library only."""

from collections.abc import Callable

_MARK = "\ufeff"  # the byte order mark that editors put before UTF-8; it is no part of the text


def about_mark(source: object) -> str:
    return f"{source} begins with a byte order mark, which was left out"


def without_mark(line: str, source: str, warn: Callable[[str], object]) -> str:
    """Returns the first line of ``source`` without a byte order mark; warns if it had one."""
    if line.startswith(_MARK):
        warn(about_mark(source))
    return line.removeprefix(_MARK)


def decoded(line: bytes, source: object, number: int) -> str:
    """Returns a line of UTF-8 without a byte order mark. Raises ValueError that names source, line and byte."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise ValueError(f"{source}: expected UTF-8 text, actual {byte} of line {number}") from None


def printable(text: object) -> str:
    """Returns text of a file with control characters escaped, so that it is one line and no terminal obeys it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def duration(seconds: float) -> str:
    if seconds < 6000:
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} hours"

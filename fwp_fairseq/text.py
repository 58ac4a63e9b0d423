"""What is shown to people. Standard library only."""


def printable(text: object) -> str:
    """Text of a file with control characters escaped, so that it stays one line and a terminal obeys none of it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"

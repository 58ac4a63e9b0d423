"""Shows text that was read from a file. Standard library only."""


def printable(text: object) -> str:
    """The text with control characters escaped, so that it stays one line and a terminal obeys none of it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))

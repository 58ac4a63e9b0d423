"""Prints lines of programs."""

import sys


def say(text: str) -> None:
    """Prints a line at once, as a whole: several runs may do so at a time."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

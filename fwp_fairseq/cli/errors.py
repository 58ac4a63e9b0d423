"""The exceptions that a subcommand raises; ``fwp`` prints their message as one line."""

import argparse
from pathlib import Path


class CommandError(Exception):
    """The operation failed: exit status 1."""


class UsageError(Exception):
    """The call makes no sense: exit status 2."""


def path_of(text: str) -> Path:
    """Converts an argument to a path; refuses an empty text, which would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty text")
    return Path(text)


def refuse_outside(args, least: float, *flags: str, most: float = 10**9) -> None:
    """Raises UsageError for the first of these flags that was given a number outside these limits, or nan."""
    for flag in flags:
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None and not least <= value <= most:
            raise UsageError(f"{flag} {value}: expected {f'at most {most:,}' if value > most else f'{least} or more'}")

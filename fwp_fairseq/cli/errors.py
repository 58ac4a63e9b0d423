"""The exceptions that a subcommand raises; ``fwp`` prints their message as one line."""

import math


class CommandError(Exception):
    """The operation failed: exit status 1."""


class UsageError(Exception):
    """The call makes no sense: exit status 2."""


def refuse_below(args, least: int, *flags: str) -> None:
    """Raises UsageError for the first of these flags that was given a number below the least, infinity or nan."""
    for flag in flags:
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None and not least <= value < math.inf:
            raise UsageError(f"{flag} {value}: expected {least} or more")

"""The exceptions that a subcommand raises; ``fwp`` prints their message as one line."""


class CommandError(Exception):
    """The operation failed: exit status 1."""


class UsageError(Exception):
    """The call makes no sense: exit status 2."""


def refuse_below_one(args, *flags: str) -> None:
    """Raises UsageError for the first of these flags that was given a number below 1."""
    for flag in flags:
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: expected 1 or more")

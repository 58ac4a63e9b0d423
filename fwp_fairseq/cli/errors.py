"""The exceptions that a subcommand raises; ``fwp`` prints their message as one line."""


class CommandError(Exception):
    """The operation failed: exit status 1."""


class UsageError(Exception):
    """The call makes no sense: exit status 2."""

"""The command line of an experiment: its options and, after `--`, flags of one of its tools."""

import argparse
from pathlib import Path

from fwp_fairseq.cli.errors import path_of


class Parser(argparse.ArgumentParser):
    """A parser that keeps the layout of its description; ``theirs`` describes the flags after `--`."""

    def __init__(self, prog: str, description: str, theirs: str, usage: str = "[OPTIONS]", **more):
        super().__init__(
            prog=prog,
            usage=f"%(prog)s {usage}" + (f" [-- {theirs}]" if theirs else ""),
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **more,
        )
        self.register("type", Path, path_of)

    def split(self, argv: list[str], options: argparse.Namespace) -> tuple[argparse.Namespace, list[str]]:
        """Parses the words up to `--` into ``options``; returns these and the flags after it."""
        end = argv.index("--") if "--" in argv else len(argv)
        return self.parse_args(argv[:end], options), argv[end + 1 :]

    def require_least(self, flag: str, value: int, least: int) -> None:
        if value < least:
            self.error(f"{flag} {value}: expected {least} or more")

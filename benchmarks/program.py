"""What the programs share: options, deadline, records."""

import argparse
import os
import re
import time
from pathlib import Path

import torch

from fwp_fairseq import records


def parser(documentation: str) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    found.add_argument("--only", metavar="REGEX", help="only the cases whose name (see --list) holds a match")
    found.add_argument("--list", action="store_true", help="print the names of the cases and end")
    found.add_argument("--time-limit", type=float, metavar="SECONDS", help="begin nothing further after so long")
    found.add_argument(
        "--record", type=Path, metavar="DIR", help="append records to DIR, e.g. benchmarks/results; not without commit"
    )
    return found


class Session:
    """One run of a program: which cases it does, until when, and where the records go.

    Raises SystemExit, naming flag, expected and actual, for options that cannot be served.
    """

    def __init__(self, name: str, arguments: argparse.Namespace, clock=time.monotonic):
        self.name, self.arguments, self.clock = name, arguments, clock
        self.environment = records.environment()
        self.begin = clock()
        self.failed: list[str] = []
        if arguments.device == "cuda" and not arguments.list and not torch.cuda.is_available():
            raise SystemExit("error: --device cuda: torch sees no CUDA device")
        if arguments.record:
            try:
                records.require_commit(self.environment)
            except ValueError as error:
                raise SystemExit(f"error: {error}") from None

    @property
    def where(self) -> str:
        """The machine, as tables name it."""
        gpu = self.environment["gpu"] if self.arguments.device == "cuda" else None
        return gpu or self.environment["cpu"]

    def chosen(self, cases: list) -> list:
        """Those that --only selects; ends the program after printing them for --list."""
        found = [case for case in cases if re.search(self.arguments.only or "", case.name)]
        if self.arguments.list:
            print("\n".join(case.name for case in found))
            raise SystemExit(0)
        if not found:
            raise SystemExit(f"error: --only {self.arguments.only}: expected a match, found none; see --list")
        return found

    def late(self, share: float = 1.0) -> bool:
        """Whether this share of --time-limit, if there is one, is over."""
        limit = self.arguments.time_limit
        return limit is not None and self.clock() - self.begin > share * limit

    def until_deadline(self, cases: list):
        """The cases one after the other; what is left when time is up is named."""
        for number, case in enumerate(cases):
            if self.late():
                left = ", ".join(other.name for other in cases[number:])
                print(f"--time-limit {self.arguments.time_limit:g}: left out {left}", flush=True)
                return
            yield case

    def record(self, **fields) -> None:
        """Appends to the program's own file; ``table`` is the program's name unless given."""
        if self.arguments.record:
            record = {
                "table": self.name,
                "where": self.where,
                "device": self.arguments.device,
                "load": [round(load, 2) for load in os.getloadavg()],
                "environment": self.environment,
                **fields,
            }
            records.append(self.arguments.record / f"{self.name}.jsonl", record)

    def status(self) -> int:
        """Of the program: 1 when a check failed."""
        for failure in self.failed:
            print(f"FAILED: {failure}", flush=True)
        return 1 if self.failed else 0

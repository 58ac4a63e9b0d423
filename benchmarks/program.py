"""The options, deadline and records that all benchmark programs have."""

import argparse
import os
import re
import time
from pathlib import Path

import torch

from scripts.common import records


def parser(documentation: str, devices: tuple[str, ...] = ("cpu", "cuda")) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=devices, default="cpu")
    options.add_argument("--only", metavar="REGEX", help="only the cases whose name (see --list) holds a match")
    options.add_argument("--list", action="store_true", help="print the names of the cases and end")
    options.add_argument("--time-limit", type=float, metavar="SECONDS", help="start no further case after this time")
    what = "append records to DIR, e.g. benchmarks/results; needs a commit"
    options.add_argument("--record", type=Path, metavar="DIR", help=what)
    return options


def resident_bytes(field: str, process: int | str = "self") -> int:
    """Returns the memory of this process or of another one: now with ``VmRSS``, its peak with ``VmHWM``."""
    status = Path(f"/proc/{process}/status")
    for line in status.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{status} has no {field}")


class Session:
    """One run of a program: its cases, its deadline and its records.

    Raises SystemExit for options that cannot be served; the message names flag, expected and actual value.
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
        """The name of the machine in tables."""
        gpu = self.environment["gpu"] if self.arguments.device == "cuda" else None
        return gpu or f"{self.environment['cpu']}, {torch.backends.cpu.get_cpu_capability()}"

    @property
    def capability(self) -> str | None:
        """The instruction set of the compiled kernels; None on a GPU and without them."""
        operators = torch.ops.fwp
        on_cpu = self.arguments.device == "cpu" and hasattr(operators, "cpu_capability")
        return operators.cpu_capability() if on_cpu else None

    def chosen(self, cases: list) -> list:
        """Returns the cases that --only selects; with --list prints them and ends the program."""
        chosen = [case for case in cases if re.search(self.arguments.only or "", case.name)]
        if self.arguments.list:
            print("\n".join(case.name for case in chosen))
            raise SystemExit(0)
        if not chosen:
            raise SystemExit(f"error: --only {self.arguments.only}: expected a match, found none; see --list")
        return chosen

    def late(self, share: float = 1.0) -> bool:
        """Tells whether this share of --time-limit, if there is one, is over."""
        limit = self.arguments.time_limit
        return limit is not None and self.clock() - self.begin > share * limit

    def until_deadline(self, cases: list):
        """Yields the cases one after the other; when the time is up, prints the names of those that are left out."""
        for number, case in enumerate(cases):
            if self.late():
                left = ", ".join(other.name for other in cases[number:])
                print(f"--time-limit {self.arguments.time_limit:g}: left out {left}", flush=True)
                return
            yield case

    def record(self, **fields) -> None:
        """Appends a record to the program's file; ``table`` is the program's name unless it is given."""
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
        """Returns the exit status of the program: 1 if a check failed, else 0."""
        for failure in self.failed:
            print(f"FAILED: {failure}", flush=True)
        return 1 if self.failed else 0

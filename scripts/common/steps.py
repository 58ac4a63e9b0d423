"""Runs the steps of a recipe that are not finished yet."""

from __future__ import annotations

import time
from pathlib import Path

from .commands import printed
from .progress import duration


class Steps:
    """Runs numbered steps and prints a line for each; ``total`` is their number."""

    def __init__(self, total: int):
        self.total, self.number = total, 0

    def run(self, folder, step: str, title: str, inputs, outputs: list[Path], work, command=None) -> dict:
        """Calls ``work`` unless the folder has the step's result for these inputs already; returns the result.

        ``command`` is only printed.
        """
        self.number += 1
        head = f"[{self.number}/{self.total}] {title}"
        result = folder.result(step, inputs, outputs)
        if result is not None:
            print(f"{head}: already done", flush=True)
            return result
        print(head, flush=True)
        if command:
            print(f"  {printed(command)}", flush=True)
        folder.begin(step)
        begin = time.monotonic()
        result = folder.finish(step, inputs, work())
        print(f"  done in {duration(time.monotonic() - begin)}", flush=True)
        return result

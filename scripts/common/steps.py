"""Runs the steps of a recipe, except those that are finished."""

from __future__ import annotations

import time
from pathlib import Path

from .commands import printed
from .progress import duration


class Steps:
    """Does the unfinished steps of a folder, and prints a line for each step."""

    def __init__(self, total: int):
        self.total, self.number = total, 0

    def do(self, folder, step: str, title: str, inputs, outputs: list[Path], work, command=None) -> dict:
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

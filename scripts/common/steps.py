"""Runs the steps of a folder that are not finished yet."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from . import process
from .commands import printed
from .folder import Folder
from .progress import duration, say


class Steps:
    """Runs the steps of ``folder`` and says a line about each; ``before`` is called before a step begins."""

    def __init__(self, folder: Folder, say: Callable[[str], object] = say, before: Callable | None = None):
        self.folder, self.say, self.before = folder, say, before

    def run(
        self, step: str, title: str, inputs, outputs: list[Path], work: Callable[[], dict | None], command=None
    ) -> dict:
        """Calls ``work`` unless the folder has the step's result for these inputs already; returns the result.

        ``command`` is only printed, so that it can be copied.
        """
        head = f"[{self.folder.steps.index(step) + 1}/{len(self.folder.steps)}] {title}"
        result = self.folder.result(step, inputs, outputs)
        if result is not None:
            self.say(f"{head}: already done")
            return result
        if self.before:
            self.before()
        self.say(head)
        if command:
            self.say(f"  {printed(command)}")
        self.folder.begin(step)
        begin = time.monotonic()
        result = self.folder.finish(step, inputs, work() or {})
        self.say(f"  done in {duration(time.monotonic() - begin)}")
        return result

    def binarise(self, command: list[str], inputs: list[str], dictionary: str) -> None:
        """Runs fairseq-preprocess, ``command``, as the step "preprocess": it makes a new folder `bin`."""
        folder = self.folder.path

        def work() -> None:
            shutil.rmtree(folder / "bin", ignore_errors=True)
            process.run(command, folder / "preprocess.log")

        self.run("preprocess", "binarise", inputs, [folder / "bin" / dictionary], work, command)

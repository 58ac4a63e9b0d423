"""The folder of a run or of a corpus: what it was made with, and which of its steps are finished."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from fwp_fairseq.cli.commands import say
from fwp_fairseq.files import locked, refuse_interpreted, write_atomically
from fwp_fairseq.text import duration

from . import process
from .commands import printed
from .errors import RecipeError


def content(path: Path) -> str:
    """Identifies a file by name, size and time, because one of the same name may have other content."""
    status = path.stat()
    return f"{path}, {status.st_size} bytes of {status.st_mtime_ns}"


class Folder:
    """A folder with marker files. A step is finished if its marker has the same inputs and its outputs exist.

    ``say`` is told of every step; ``check`` is called before one begins.
    """

    def __init__(self, path: Path, steps: tuple[str, ...], say: Callable = say, check: Callable = lambda: None):
        refuse_interpreted(path)
        self.path, self.steps, self.say, self.check = path, steps, say, check
        path.mkdir(parents=True, exist_ok=True)

    def locked(self, wait: bool = False) -> contextlib.AbstractContextManager[None]:
        """Locks the folder for one command. If another holds it, waits with a message, or raises RecipeError."""

        def busy() -> None:
            if not wait:
                raise RecipeError(f"{self.path} is in use by another command; wait for it, or choose another --out")
            print(f"waiting for another command that is using {self.path}", flush=True)

        return locked(self.path, busy)

    def claim(self, configuration: dict) -> None:
        """Stores the configuration in a new folder. Values that are None are unknown, and agree with any other.

        Raises RecipeError, naming the differences, if the folder was made with another configuration.
        """
        file = self.path / "config.json"
        there = self._read(file)
        if there is None:
            write_atomically(file, json.dumps(configuration, indent=2) + "\n")
            return
        different = [
            f"  {key}: expected {configuration.get(key, 'nothing')}, actual {there.get(key, 'nothing')}"
            for key in dict.fromkeys([*configuration, *there])
            if None not in (configuration.get(key, ""), there.get(key, "")) and configuration.get(key) != there.get(key)
        ]
        if different:
            lines = "\n".join(different)
            raise RecipeError(
                f"{self.path} was made with other settings (expected: of this call, actual: of the folder):\n{lines}\n"
                f"Remove {self.path}, or choose another folder with --out."
            )

    def result(self, step: str, inputs: object, outputs: list[Path]) -> dict | None:
        """Returns the result of a finished step, or None if the step has to be done."""
        file = self._marker(step)
        marker = self._read(file)
        if marker is None or marker["inputs"] != inputs or not all(path.exists() for path in outputs):
            return None
        return marker["result"]

    def run(
        self, step: str, title: str, inputs, outputs: list[Path], work: Callable[[], dict | None], command=None
    ) -> dict:
        """Calls ``work`` unless the step's result for these inputs is here already; returns the result.

        Later steps have to be done again then. ``command`` is only printed, so that it can be copied.
        """
        head = f"[{self.steps.index(step) + 1}/{len(self.steps)}] {title}"
        result = self.result(step, inputs, outputs)
        if result is not None:
            self.say(f"{head}: already done")
            return result
        self.check()
        self.say(head)
        if command:
            self.say(f"  {printed(command)}")
        for later in self.steps[self.steps.index(step) :]:
            self._marker(later).unlink(missing_ok=True)
        begin = time.monotonic()
        result = work() or {}
        write_atomically(self._marker(step), json.dumps({"inputs": inputs, "result": result}, indent=2) + "\n")
        self.say(f"  done in {duration(time.monotonic() - begin)}")
        return result

    def binarise(self, command: list[str], inputs: list[str], dictionary: str) -> None:
        """Runs fairseq-preprocess, ``command``, as the step "preprocess": it makes a new folder `bin`."""

        def work() -> None:
            shutil.rmtree(self.path / "bin", ignore_errors=True)
            process.run(command, self.path / "preprocess.log")

        self.run("preprocess", "binarise", inputs, [self.path / "bin" / dictionary], work, command)

    def _marker(self, step: str) -> Path:
        return self.path / f"done-{step}.json"

    @staticmethod
    def _read(path: Path) -> dict | None:
        try:
            marker = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            marker = None
        if not isinstance(marker, dict):
            raise RecipeError(f"{path} is not a JSON object; remove {path.parent} and start again")
        return marker

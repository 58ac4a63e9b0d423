"""What a folder remembers between calls: the configuration it was made with, and which steps are finished."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from fwp_fairseq.files import write_atomically


class RecipeError(Exception):
    """Ends a recipe; the message is for the user."""


def refuse_path(path: Path) -> None:
    """Raises RecipeError for a path that fairseq would not take as it stands."""
    for text in (":", ",", "${"):
        if text in str(path):
            raise RecipeError(
                f"{path}: expected a path without '{text}', where fairseq "
                f"{'fills in a value' if text == '${' else 'cuts paths'}; choose another folder"
            )


class _Report(dict):
    """What a finished step reported; a key that is not there is the marker's fault."""

    def __init__(self, values: dict, marker: Path):
        super().__init__(values)
        self.marker = marker

    def __missing__(self, key: str):
        raise _damaged(self.marker, f"its result lacks {key}")


def _damaged(marker: Path, problem: str) -> RecipeError:
    return RecipeError(f"{marker}: {problem}; remove this file, and the same command does its step again")


class Folder:
    """A step is finished when its marker says so with the same inputs, and what it made is still there."""

    def __init__(self, path: Path, steps: tuple[str, ...]):
        refuse_path(path)
        self.path, self.steps = path, steps
        path.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """One command at a time works in the folder. While another one does: waits, and says so, or RecipeError."""
        with open(self.path / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise RecipeError(
                        f"{self.path} is in use by another command; wait for it, or choose another --name or --out"
                    ) from None
                print(f"waiting for another command that is at work in {self.path}", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def claim(self, configuration: dict) -> None:
        """Takes a new folder for this configuration; refuses one that was made with another, naming what differs."""
        file = self.path / "config.json"
        there = self._read(file)
        if there is None:
            write_atomically(file, json.dumps(configuration, indent=2) + "\n")
            return
        different = [
            f"  {key or 'command'}: expected {configuration.get(key, 'nothing')}, actual {there.get(key, 'nothing')}"
            for key in dict.fromkeys([*configuration, *there])
            if configuration.get(key) != there.get(key)
        ]
        if different:
            lines = "\n".join(different)
            raise RecipeError(
                f"{self.path} was made with other settings (expected: now, actual: in the folder):\n{lines}\n"
                f"Remove {self.path}, or choose another folder with --name or --out."
            )

    def result(self, step: str, inputs: object, outputs: list[Path]) -> dict | None:
        """What the finished step reported, or None when it has to be done."""
        file = self._marker(step)
        marker = self._read(file)
        if marker is None:
            return None
        if "inputs" not in marker or not isinstance(marker.get("result"), dict):
            raise _damaged(file, "expected inputs and result in it")
        if marker["inputs"] != inputs or not all(path.exists() for path in outputs):
            return None
        return _Report(marker["result"], file)

    def begin(self, step: str) -> None:
        """Forgets this step and those that build on it."""
        for later in self.steps[self.steps.index(step) :]:
            self._marker(later).unlink(missing_ok=True)

    def finish(self, step: str, inputs: object, result: dict) -> dict:
        write_atomically(self._marker(step), json.dumps({"inputs": inputs, "result": result}, indent=2) + "\n")
        return result

    def _marker(self, step: str) -> Path:
        return self.path / f"done-{step}.json"

    @staticmethod
    def _read(path: Path) -> dict | None:
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RecipeError(f"{path} is no JSON object; remove {path.parent} and start again")
        return found

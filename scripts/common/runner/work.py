"""Runs the steps of one run, such as tools and its training, keeps those that are finished, and makes its record."""

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq.cli.progress import SAY_EVERY_SECONDS

from .. import process, records, training
from ..commands import PYTHON, as_run
from ..folder import Folder
from ..training import loss_problem
from .run import Run


@dataclass(frozen=True)
class Work:
    """A run that is being carried out in its folder: keeps finished steps, and continues an interrupted training.

    - `variables`: the environment variables of its tools.
    - `command`: the command that the user called.
    """

    run: Run
    folder: Folder
    configuration: dict
    variables: dict[str, str]
    command: tuple[str, ...]

    def say(self, text: str) -> None:
        self.folder.say(text)

    @property
    def options(self) -> dict:
        """The options of `process.run` for the run's tools."""
        return {"variables": self.variables, "on_tick": self.folder.check}

    @property
    def conditions(self) -> dict:
        """The threads and the environment of what is measured now."""
        gpu = {} if self.variables["CUDA_VISIBLE_DEVICES"] else {"gpu": None}  # there may be one that is not used
        return {"threads": int(self.variables["OMP_NUM_THREADS"]), "environment": records.environment() | gpu}

    def part(self, path: Path, steps: tuple[str, ...]) -> Folder:
        """Returns a folder inside that of the run, with steps of its own."""
        return Folder(path, steps, self.folder.say, self.folder.check)

    def tool(self, command: list[str], log: Path, **more) -> process.Usage:
        """Runs a tool with a new log."""
        log.unlink(missing_ok=True)
        return process.run(command, log, **self.options | more)

    def run_tool(self, step: str, title: str, command: list[str], outputs: list[Path], log: Path) -> None:
        """Runs a tool as a step."""
        self.folder.run(step, title, command, outputs, lambda: {"seconds": self.tool(command, log).seconds}, command)

    def train(
        self, command: list[str], output: Path, step="train", title="train", folder: Path | None = None, **more
    ) -> dict:
        """Runs fairseq-train to its limit as a step; returns what the record says of it.

        ``folder`` holds its log and checkpoints, by default the folder of the run; ``more`` is for `training.train`. A
        loss that does not fall is said, and is a result like any other.
        """
        folder = folder or self.run.path

        def work() -> dict:
            conditions = self.conditions
            trained = training.train(folder, command, self.say, **self.options, **more)
            return trained | {"command": as_run(command)} | conditions

        trained = self.folder.run(step, title, self.configuration, [output], work, command)
        if problem := loss_problem(trained):
            self.say(f"{problem}; see {folder}/train.log")
        return trained

    def call(self, module: str, arguments: dict) -> dict:
        """Runs a Python module with one thread as the step "train"; returns what it writes, a JSON object.

        The module gets two arguments: ``arguments`` as JSON, and the file to write. Its last line is repeated once a
        minute.
        """
        output = self.run.path / "result.json"
        said = time.monotonic()

        def line(text: str) -> None:
            nonlocal said
            if time.monotonic() - said >= SAY_EVERY_SECONDS:
                said = time.monotonic()
                self.say(text)

        def work() -> dict:
            conditions = self.conditions | {"threads": 1}
            command = [PYTHON, "-m", module, json.dumps(arguments), str(output)]
            variables = self.variables | {"OMP_NUM_THREADS": "1"}
            self.tool(command, self.run.path / "train.log", on_line=line, variables=variables)
            return json.loads(output.read_text(encoding="utf-8")) | conditions

        return self.folder.run("train", "train", arguments, [output], work)

    def record(self, table: str, trained: dict, **own) -> dict:
        """Returns the record of a run for this table, with the experiment's own fields."""
        row = self.run.row
        return {
            "table": table,
            "preset": self.run.preset.name,
            "row": row.name,
            **row.recorded,
            "seed": self.run.seed,
            "updates": trained["updates"],
            "parameters": trained["parameters"],
            "valid_loss": trained["valid_loss"],
            "threads": trained["threads"],
            "train_seconds": round(trained["seconds"], 1),
            "train_command": trained["command"],
            "command": shlex.join(self.command),
            "environment": trained["environment"],
            **own,
        }


def called(function: Callable[[dict], dict], argv: list[str]) -> None:
    """Runs the main program of a module that `Work.call` starts."""
    arguments, output = argv
    Path(output).write_text(json.dumps(function(json.loads(arguments)), allow_nan=False), encoding="utf-8")

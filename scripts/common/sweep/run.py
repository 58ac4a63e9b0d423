"""One run of a sweep: its identity among records, and its way from training to its record."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import process, training
from ..commands import as_run, flags_of, words_of
from ..folder import Folder
from ..progress import loss_problem
from .parallel import Sweep, SweepDisplay


@dataclass(frozen=True)
class Run:
    """One row of a preset with one seed, in the folder `path`; `more` are the user's flags of fairseq-train."""

    preset: Any
    row: Any
    seed: int
    path: Path
    data: Path
    more: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        return f"{self.row.name}-seed{self.seed}"

    @property
    def key(self) -> tuple:
        """The key of this run's record, as the function `key` makes it from the record."""
        return self.preset.name, self.row.name, self.seed

    @property
    def given(self) -> dict[str, str]:
        """The user's flags of fairseq-train."""
        return flags_of(list(self.more))

    def train_words(self, flags: dict) -> list[str]:
        """Returns fairseq-train's arguments: these flags and the user's, which replace those of the same name."""
        given = self.given
        return [*words_of({flag: value for flag, value in flags.items() if flag not in given}), *self.more]


def key(record: dict) -> tuple:
    """Returns what identifies a run among records: preset, row and seed."""
    return record["preset"], record["row"], record["seed"]


def recorded(path: Path) -> set[tuple]:
    """Returns the keys of the records in one file. Raises ValueError for a line that is no record, naming it."""
    from scripts.results import records

    return {key(record) for record in records.read_file(path)} if path.is_file() else set()


def settings(flags: dict, distribution: Iterable[str]) -> dict:
    """Returns the settings that must not change when a training is continued.

    ``distribution`` names the flags that say how a training is distributed over processes, which may change: the
    result is the same up to rounding.
    """
    return {flag: value for flag, value in flags.items() if flag and flag not in distribution}


@dataclass(frozen=True)
class Work:
    """One run that is being carried out: keeps finished steps, and continues an interrupted training."""

    run: Run
    folder: Folder
    configuration: dict
    sweep: Sweep
    slot: int
    variables: dict[str, str]

    @property
    def options(self) -> dict:
        """The options of `process.run` for the run's tools."""
        return {"variables": self.variables, "on_tick": self.sweep.check}

    def say(self, text: str) -> None:
        self.sweep.say(f"{self.run.name}: {text}")

    def step(self, name: str, inputs, outputs: list[Path], work: Callable[[], dict]) -> dict:
        """Calls ``work`` unless the folder has the step's result for these inputs already; returns the result."""
        result = self.folder.result(name, inputs, outputs)
        if result is None:
            self.sweep.check()
            self.folder.begin(name)
            result = self.folder.finish(name, inputs, work())
        return result

    def train(self, command: list[str], output: Path) -> dict:
        """Runs fairseq-train to its limit as the step "train"; returns what the record says of it."""
        from scripts.results import records

        def work() -> dict:
            environment = records.environment()
            self.say("training")
            display = SweepDisplay(training.progress(command), self.sweep, self.run.name, self.slot)
            return training.train(self.run.path, command, display, self.say, **self.options) | {
                "command": as_run(command),
                "threads": int(self.variables["OMP_NUM_THREADS"]),
                "environment": environment,
            }

        trained = self.step("train", self.configuration, [output], work)
        if problem := loss_problem(trained):  # this is a result too, and is recorded
            self.say(f"{problem}; see {self.run.path}/train.log")
        return trained

    def record(self, table: str, trained: dict, **own) -> dict:
        """Returns the record of a run for this table, with the recipe's own fields."""
        row = self.run.row
        return {
            "table": table,
            "preset": self.run.preset.name,
            "row": row.name,
            "feature_map": row.feature_map,
            "update_rule": row.update_rule,
            "normalizer": row.normalizer,
            "d_dot": row.d_dot,
            "seed": self.run.seed,
            "updates": trained["updates"],
            "parameters": trained["parameters"],
            "valid_loss": trained["valid_loss"],
            "threads": trained["threads"],
            "train_seconds": round(trained["seconds"], 1),
            "train_command": trained["command"],
            "command": shlex.join(self.sweep.command),
            "environment": trained["environment"],
            **own,
        }


def carry_out(
    run: Run,
    steps: tuple[str, ...],
    configuration: dict,
    sweep: Sweep,
    slot: int,
    variables: dict[str, str],
    make_record: Callable[[Work], dict],
) -> dict:
    """Calls make_record(work) in the run's folder; appends the record to each file of the sweep that does not have it.

    Raises RecipeError if a tool fails or another process works on the same run.
    """
    from scripts.results import records

    folder = Folder(run.path, steps)
    with folder.locked():
        folder.claim(configuration)
        record = make_record(Work(run, folder, configuration, sweep, slot, process.environment(sweep.jobs) | variables))
        for path in sweep.records:
            if key(record) not in recorded(path):
                records.append(path, record)
    return record

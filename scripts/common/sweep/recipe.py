"""Runs the rows of a table that are not recorded yet, with several seeds and some of them at a time."""

from __future__ import annotations

import shlex
import sys
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from .. import interruption, packages, process, program
from ..columns import in_columns
from ..commands import printed
from ..folder import refuse_path
from ..progress import on_terminal, write_above_bars
from .parallel import Sweep, sweep
from .run import Run, recorded


class Recipe(ABC):
    """What one recipe adds to the code here.

    - `here`: the folder of its program, run.py.
    - `out`: the folder that holds the runs of all presets.
    - `records`: the file of the project's records. A run's own folder has a file of the same name.
    - `how_to_go_on`: what the same command does after an interruption.

    `options` are those of `arguments.parse`. The devices of a run are of a type that the recipe chooses.
    """

    here: Path
    out: Path
    records: Path
    how_to_go_on: str

    @abstractmethod
    def parse(self, argv: list[str]): ...

    @abstractmethod
    def make_run(self, options, **common) -> Run:
        """Returns a run; ``common`` are the fields of `Run`."""

    @abstractmethod
    def devices(self, options) -> list:
        """Returns the devices of each of the runs that go on at a time."""

    @abstractmethod
    def describe(self, run: Run) -> list[str]:
        """Returns what --list says about a run's model."""

    @abstractmethod
    def explain(self, options, run: Run, devices) -> str:
        """Returns a line about what all runs have in common."""

    def preparation(self, options) -> list[list[str]]:
        """Returns those commands of `prepare` that are worth printing."""
        return []

    @abstractmethod
    def commands(self, run: Run, devices) -> list[list[str]]:
        """Returns all commands of a run. Raises RecipeError for devices on which it cannot run."""

    @abstractmethod
    def prepare(self, options) -> None:
        """Prepares the data of the preset in ``options.data``, or raises RecipeError with the command that does."""

    @abstractmethod
    def carry_out(self, run: Run, devices, sweep: Sweep, slot: int) -> object:
        """Takes one run from training to its record."""

    def main(self, argv: list[str]) -> int:
        options = self.parse(argv)
        options.command = [str(self.here / "run.py"), *argv]
        options.out = program.from_root(options.out) or self.out / options.preset.name
        options.data = program.from_root(options.data) or options.out / "data"
        return program.run(lambda: self.reproduce(options), self.how_to_go_on)

    def reproduce(self, options) -> int:
        packages.require()
        runs = self._runs(options)
        if options.list:
            self._list(options, runs)
            return 0
        if options.prepare and not options.dry_run:
            self._prepare(options)
            return 0
        files = (options.out / self.records.name, *([process.ROOT / self.records] if options.record else []))
        # The last file says which runs are done. With --record it is the project's: a fresh clone, whose own folder is
        # empty, must not repeat these runs.
        known = recorded(files[-1])
        missing = [run for run in runs if run.key not in known]
        devices = self.devices(options)
        explanation = self.explain(options, runs[0], devices[0])
        commands = {run.name: self.commands(run, devices[0]) for run in missing}
        if options.dry_run:
            print(f"# {explanation}", *map(printed, self.preparation(options)), sep="\n")
            for name, lines in commands.items():
                print(f"\n# {name}", *map(printed, lines), sep="\n")
            return 0
        if options.record:
            from scripts.results import records

            records.require_commit()
        say = write_above_bars
        say(f"+ {shlex.join(options.command)}")
        say(explanation)
        if len(missing) < len(runs):
            say(f"{len(runs) - len(missing)} of {len(runs)} runs are recorded already and skipped")
        if not missing:
            return 0
        self._prepare(options)
        return self._sweep(missing, devices, files, tuple(options.command))

    def _prepare(self, options) -> None:
        for path in (options.out, options.data):
            refuse_path(path)
        self.prepare(options)

    def _runs(self, options) -> list[Run]:
        rows = [row for row in options.preset.rows if not options.rows or row.name in options.rows]
        return [
            self.make_run(
                options,
                preset=options.preset,
                row=row,
                seed=seed,
                path=options.out / f"{row.name}-seed{seed}",
                data=options.data,
                more=options.more,
            )
            for seed in options.seeds  # all rows of one seed come before the next seed
            for row in rows
        ]

    def _list(self, options, runs: list[Run]) -> None:
        own, project = recorded(options.out / self.records.name), recorded(process.ROOT / self.records)
        lines = []
        for run in runs:
            state = "recorded" if run.key in own else "begun" if run.path.exists() else "not run"
            if run.key in project:
                state += f"; {self.records.parent} has it"
            lines.append([run.name, *self.describe(run), state])
        print("\n".join(in_columns(lines)))

    def _sweep(self, runs: list[Run], devices: list, files: tuple[Path, ...], command: tuple[str, ...]) -> int:
        """Carries out the runs and reports those that failed; returns the exit status."""
        stop = threading.Event()

        def check() -> None:
            if stop.is_set():
                raise interruption.Stopped("the sweep")

        shared = Sweep(len(devices), write_above_bars, check, on_terminal(), files, command)
        failures = sweep(
            runs, devices, lambda run, where, slot: self.carry_out(run, where, shared, slot), shared.say, stop
        )
        for name, error in failures.items():
            print(f"\n{name} failed: {error}", file=sys.stderr)
        if failures:
            names = ", ".join(failures)
            print(f"\nerror: {len(failures)} of {len(runs)} runs failed: {names}", file=sys.stderr)
        return 1 if failures else 0

"""What every experiment is made of: runs the rows of a table that are not recorded yet, some of them at a time."""

import argparse
import shlex
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fwp_fairseq.cli.processes import environment

from .. import process, program, records
from ..commands import printed
from ..folder import Folder, refuse_path
from ..text import say
from . import gpus, options
from .parallel import carry_out
from .run import Run, Work, folder_name

PAIRED = Path("benchmarks/results/paired.jsonl")  # records of comparisons


@dataclass(frozen=True)
class Preset:
    """A scale with nothing but rows, which take minutes on a CPU."""

    name: str
    rows: tuple
    distributed = False
    on_a_cpu = None


class Experiment(ABC):
    """What one experiment adds to the code here.

    - `name`: of its folder in scripts/experiments and in runs/.
    - `description`: for --help.
    - `presets`: its scales by name; a preset has `name`, `rows`, `distributed` and `on_a_cpu`.
    - `file`: the name of its file of records, in benchmarks/results and in the folder of the runs.
    - `steps`: those of a run, in order.
    - `goes_on`: how an interrupted training goes on.
    - `takes_flags`: whether it has a use for flags of fairseq-train, which the user gives after `--`.
    - `own_flags`: those that it sets itself, and refuses there.
    - `run_type`: the class of its runs.

    The devices of a run are the numbers of its GPUs, none for the CPU.
    """

    name: str
    description: str
    presets: dict
    file: str
    steps: tuple[str, ...] = ("train",)
    goes_on = "a training goes on from its last epoch"
    takes_flags = True
    own_flags: tuple[str, ...] = ("--seed", "--save-dir", "--log-format")
    run_type: type[Run] = Run

    # Options

    def add_options(self, parser: options.Parser) -> None:
        """Adds the experiment's own options."""
        return

    def check_options(self, parser: options.Parser, given: argparse.Namespace) -> None:
        """Refuses values that are wrong or contradict each other, by parser.error."""
        return

    # Runs

    def devices(self, given: argparse.Namespace) -> list:
        """Returns the devices of each of the runs that go on at a time."""
        return gpus.shares(gpus.chosen(given), given.jobs, given.preset.distributed)

    def variables(self, devices) -> dict[str, str]:
        """Returns the environment variables of a run's tools."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}

    def explain(self, given: argparse.Namespace, run: Run, devices) -> str:
        """Returns a line about what all runs have in common, or nothing."""
        return ""

    def preparation(self, given: argparse.Namespace) -> list[list[str]]:
        """Returns those commands of `prepare` that are worth printing."""
        return []

    def commands(self, run: Run, devices) -> list[list[str]]:
        """Returns all commands of a run. Raises RecipeError for devices on which it cannot run."""
        return []

    def prepare(self, given: argparse.Namespace) -> None:
        """Prepares the data of the preset in ``given.data``, or raises RecipeError with the command that does."""
        return

    @abstractmethod
    def configuration(self, run: Run, devices) -> dict:
        """Returns the settings that must not change when a run is continued."""

    @abstractmethod
    def results(self, run: Run, devices, work: Work) -> list[dict]:
        """Takes one run from training to its records, and returns these."""

    def summary(self, run: Run, found: list[dict]) -> list[str]:
        """Returns what is said of a run at its end."""
        return []

    # A function of two finished runs, of a baseline and of a row. It maps what was compared to its record, which
    # --compare shows and keeps, and raises RecipeError if a run is not finished. None: nothing can be compared.
    compared: Callable[[Run, Run], dict[str, dict]] | None = None

    def on_finished(self, given: argparse.Namespace) -> tuple[Path, Callable[[Run], tuple]] | None:
        """What the options ask to do with finished runs, in place of training them; None if they do not.

        That is the file of its records, and a function that returns of a run the lines to say and its records.
        """
        if not getattr(given, "compare", None):
            return None

        def compare(run: Run) -> tuple[list[str], list[dict]]:
            baseline = replace(run, row=given.compare, path=given.out / folder_name(given.compare, run.seed))
            same = {"preset": run.preset.name, "row": run.row.name, "baseline": baseline.row.name, "seed": run.seed}
            compared, lines = self.compared(baseline, run), []
            for what, found in compared.items():
                theirs = f"{baseline.row.name} {found['baseline_bleu']:.2f}"
                lines.append(f"{what}: BLEU {found['bleu']:.2f}, {theirs}, p = {found['p']:.3f}")
            return lines, [{**same, **found} for found in compared.values()]

        return PAIRED, compare

    # Identity

    def key(self, record: dict) -> tuple:
        """Returns what identifies a run among records; the first ones have no preset and no row."""
        return record.get("preset"), record.get("row"), record["seed"]

    def key_of(self, run: Run) -> tuple:
        """Returns what `key` returns for the run's records."""
        return run.preset.name, run.row.name, run.seed

    # The program

    @property
    def records(self) -> Path:
        """The project's file of records."""
        return Path("benchmarks/results") / self.file

    def main(self, argv: list[str]) -> int:
        """Parses the command line and runs what it says; returns the exit status."""
        parser = options.parser(self)
        given = options.parse(parser, argv, self)
        given.command = ["python", "-m", "scripts.experiments", self.name, *argv]
        given.out = program.from_root(given.out) or self.folder_of(given)
        given.data = program.from_root(given.data) or given.out / "data"
        return program.run(lambda: self.reproduce(given), f"continues: {self.goes_on}")

    def folder_of(self, given: argparse.Namespace) -> Path:
        """The default folder of the runs."""
        return Path("runs") / self.name / given.preset.name

    def reproduce(self, given: argparse.Namespace) -> int:
        runs = self.runs(given)
        if found := self.on_finished(given):
            return self._on_finished(given, runs, *found)
        if given.prepare and not given.dry_run:
            self._prepare(given)
            return 0
        files = (given.out / self.file, *([process.ROOT / self.records] if given.record else []))
        # The last file says which runs are done. With --record it is the project's: a fresh clone, whose own folder is
        # empty, must not repeat these runs.
        known = self.recorded(files[-1])
        missing = [run for run in runs if self.key_of(run) not in known]
        devices = self.devices(given)
        explanation = self.explain(given, runs[0], devices[0])
        for run in () if given.record else runs:  # records do not have all settings, its folder has
            if run not in missing and run.path.is_dir():
                Folder(run.path, self.steps).claim(self.configuration(run, devices[0]))
        commands = {run.name: self.commands(run, devices[0]) for run in missing}
        if given.dry_run:
            first = [f"# {explanation}"] * bool(explanation) + list(map(printed, self.preparation(given)))
            blocks = [first, *([f"# {name}", *map(printed, lines)] for name, lines in commands.items())]
            print("\n\n".join("\n".join(block) for block in blocks if block))
            return 0
        if given.record:
            records.require_commit()
        say(f"+ {shlex.join(given.command)}")
        if explanation:
            say(explanation)
        if len(missing) < len(runs):
            say(f"{len(runs) - len(missing)} of {len(runs)} runs are recorded already and skipped ({files[-1]})")
        if not missing:
            return 0
        self._prepare(given)
        return self._carry_out(missing, devices, files, tuple(given.command))

    def runs(self, given: argparse.Namespace) -> list[Run]:
        """Returns the runs that were asked for."""
        return [
            self.run_type(
                preset=given.preset,
                row=row,
                seed=seed,
                path=given.out / folder_name(row, seed),
                data=given.data,
                more=given.more,
            )
            for seed in given.seeds  # all rows of one seed come before the next seed
            for row in given.rows
        ]

    def _on_finished(self, given: argparse.Namespace, runs: list[Run], path: Path, act: Callable) -> int:
        if given.record:
            records.require_commit()
        gpu = {"gpu": None} if given.cpu else {}
        own = {"command": shlex.join(given.command), "environment": records.environment() | gpu}
        for run in runs:
            lines, found = act(run)
            for line in lines:
                say(f"{run.name}: {line}")
            self._note_checkout(run, given.record)
            for file in (given.out / path.name, *([path] if given.record else [])):
                records.append(file, *({**record, **own} for record in found))
        return 0

    def _note_checkout(self, run: Run, record: bool) -> None:
        """Notes what code works on a run. With ``record``, raises ValueError if any was not that of a commit."""
        for checkout in records.checkouts(run.path / "checkouts.json"):
            if record:
                records.require_commit(checkout)

    def _prepare(self, given: argparse.Namespace) -> None:
        for path in (given.out, given.data):
            refuse_path(path)
        self.prepare(given)

    def recorded(self, path: Path) -> set[tuple]:
        """Returns the keys of the records in one file. Raises ValueError for a line that is no record, naming it."""
        try:
            return {self.key(record) for record in (records.read_file(path) if path.is_file() else [])}
        except KeyError as error:
            raise ValueError(f"{path}: a record lacks {error}") from None

    def _carry_out(self, runs: list[Run], devices: list, files: tuple[Path, ...], command: tuple[str, ...]) -> int:
        """Carries out the runs and reports those that failed; returns the exit status."""
        stop = threading.Event()

        def check() -> None:
            if stop.is_set():
                raise program.Stopped("all runs")

        def one(run: Run, where) -> None:
            folder = Folder(run.path, self.steps, lambda text: say(f"{run.name}: {text}"), check)
            variables = environment(len(devices)) | self.variables(where)
            self._one(Work(run, folder, self.configuration(run, where), variables, command), where, files)

        failures = carry_out(runs, devices, one, say, stop)
        for name, error in failures.items():
            print(f"\n{name} failed: {error}", file=sys.stderr)
        if failures:
            names = ", ".join(failures)
            print(f"\nerror: {len(failures)} of {len(runs)} runs failed: {names}", file=sys.stderr)
        return 1 if failures else 0

    def _one(self, work: Work, devices, files: tuple[Path, ...]) -> None:
        """Carries out one run. Raises RecipeError if a tool fails or another process works on the same run."""
        with work.folder.locked():
            work.folder.claim(work.configuration)
            self._note_checkout(work.run, record=len(files) > 1)
            found = self.results(work.run, devices, work)
            for path in files:
                records.append(path, *found, key=self.key)
        for line in self.summary(work.run, found):
            work.say(line)

"""The description of an experiment, from which :mod:`.reproduction` makes its program."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .. import records
from ..arguments import Parser
from . import gpus
from .call import Call
from .preset import Preset
from .run import Run, folder_name
from .work import Work

PAIRED = Path("benchmarks/results/paired.jsonl")  # records of comparisons


class Experiment(ABC):
    """Describes one experiment.

    - `name`: of its folder in scripts/experiments and in runs/.
    - `description`: for --help.
    - `presets`: its scales by name.
    - `file`: the name of its file of records, in benchmarks/results and in the folder of the runs.
    - `steps`: those of a run, in order.
    - `goes_on`: how an interrupted training goes on.
    - `own_flags`: flags of fairseq-train that it sets itself, and refuses after `--`; None if it takes no such flags.
    - `run_type`: the class of its runs.

    The devices of a run are the numbers of its GPUs, none for the CPU.
    """

    name: str
    description: str
    presets: dict[str, Preset]
    file: str
    steps: tuple[str, ...] = ("train",)
    goes_on = "a training goes on from its last epoch"
    own_flags: tuple[str, ...] | None = ("--seed", "--save-dir", "--log-format")
    run_type: type[Run] = Run

    def add_options(self, parser: Parser) -> None:
        """Adds the experiment's own options."""
        return

    def check_options(self, parser: Parser, call: Call) -> None:
        """Refuses values that are wrong or contradict each other, by parser.error."""
        return

    def folder_of(self, preset: str) -> Path:
        """Returns the default folder of the runs."""
        return Path("runs") / self.name / preset

    def runs(self, call: Call) -> list[Run]:
        """Returns the runs that were asked for; all rows of one seed come before the next seed."""
        return [self._run(call, row, seed) for seed in call.seeds for row in call.rows]

    def _run(self, call: Call, row, seed: int) -> Run:
        return self.run_type(call.preset, row, seed, call.out / folder_name(row, seed), call.data, more=call.more)

    def devices(self, call: Call) -> list:
        """Returns the devices of each of the runs that go on at a time."""
        return gpus.shares(gpus.chosen(call), call.jobs, call.preset.distributed)

    def variables(self, devices) -> dict[str, str]:
        """Returns the environment variables of a run's tools."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}

    def preparation(self, call: Call) -> list[list[str]]:
        """Returns those commands of `prepare` that are worth printing."""
        return []

    def commands(self, run: Run, devices) -> list[list[str]]:
        """Returns all commands of a run. Raises RecipeError for devices on which it cannot run."""
        return []

    def prepare(self, call: Call) -> None:
        """Prepares the data of the preset in ``call.data``, or raises RecipeError with the command that does."""
        return

    @abstractmethod
    def configuration(self, run: Run, devices) -> dict:
        """Returns the settings that must not change when a run is continued."""

    @abstractmethod
    def results(self, run: Run, devices, work: Work) -> list[dict]:
        """Takes one run from training to its records, and returns these."""

    def summary(self, run: Run, results: list[dict]) -> list[str]:
        """Returns what is said of a run at its end."""
        return []

    # A function of two finished runs, of a baseline and of a row. It maps what was compared to its record, which
    # --compare shows and keeps, and raises RecipeError if a run is not finished. None: nothing can be compared.
    compared: Callable[[Run, Run], dict[str, dict]] | None = None

    def on_finished(self, call: Call) -> tuple[Path, Callable[[Run], tuple]] | None:
        """Returns what the options ask to do with finished runs, in place of training them; None if they do not.

        That is the file of its records, and a function that returns of a run the lines to say and its records.
        """
        if call.compare is None:
            return None

        def compare(run: Run) -> tuple[list[str], list[dict]]:
            baseline = replace(run, row=call.compare, path=call.out / folder_name(call.compare, run.seed))
            same = {"preset": run.preset.name, "row": run.row.name, "baseline": baseline.row.name, "seed": run.seed}
            compared, lines = self.compared(baseline, run), []
            for what, scores in compared.items():
                theirs = f"{baseline.row.name} {scores['baseline_bleu']:.2f}"
                lines.append(f"{what}: BLEU {scores['bleu']:.2f}, {theirs}, p = {scores['p']:.3f}")
            return lines, [{**same, **scores} for scores in compared.values()]

        return PAIRED, compare

    @property
    def record_file(self) -> Path:
        """The project's file of records."""
        return Path("benchmarks/results") / self.file

    def key(self, record: dict) -> tuple:
        """Returns what identifies a run among records; the first ones have no preset and no row."""
        return record.get("preset"), record.get("row"), record["seed"]

    def key_of(self, run: Run) -> tuple:
        """Returns what `key` returns for the run's records."""
        return run.preset.name, run.row.name, run.seed

    def recorded(self, path: Path) -> set[tuple]:
        """Returns the keys of the records in one file. Raises ValueError for a line that is no record, naming it."""
        try:
            return {self.key(record) for record in (records.read_file(path) if path.is_file() else [])}
        except KeyError as error:
            raise ValueError(f"{path}: a record lacks {error}") from None

"""The exact commands of one run, as argument lists. Paths are relative to the repository root where possible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scripts.common.commands import USER_DIR, flags_of, words_of
from scripts.common.folder import RecipeError
from scripts.results.language_model_rows import Row

from .presets import Preset, Size

EVALUATED = ("valid", "test")
# How a training is spread over processes; the result is the same up to rounding.
SPREAD = ("--batch-size", "--distributed-world-size", "--cpu", "--num-workers")


@dataclass(frozen=True)
class Run:
    """One row of a preset with one seed, in folder `path`. `more`: the user's flags of fairseq-train."""

    preset: Preset
    row: Row
    seed: int
    path: Path
    data: Path
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.row.name}-seed{self.seed}"

    @property
    def key(self) -> tuple:
        """What its record is found by: train_and_evaluate.key."""
        return self.preset.name, self.row.name, self.seed

    @property
    def size(self) -> Size:
        return self.preset.sizes[self.row.size]

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints/checkpoint_best.pt"

    def log(self, split: str) -> Path:
        return self.path / f"{split}.log"

    def text(self, split: str) -> Path:
        return self.data / f"raw/{split}.txt"

    @property
    def state_numbers(self) -> int:
        """How many numbers it keeps of a text, counted as in Appendix F: W of every layer, or keys and values."""
        row, size = self.row, self.size
        kept = 2 * size.length if row.feature_map == "softmax" else row.d_dot
        return size.layers * size.width * kept


def streams_of_a_process(size: Size, gpus: tuple[int, ...]) -> int:
    """The batch of one process, so that all of them read `streams` streams."""
    world = max(1, len(gpus))
    if size.streams % world:
        possible = ", ".join(str(n) for n in range(1, size.streams + 1) if size.streams % n == 0)
        raise RecipeError(f"{world} GPUs cannot share {size.streams} streams evenly; expected one of {possible} GPUs")
    return size.streams // world


def train(run: Run, gpus: tuple[int, ...] = ()) -> list[str]:
    size = run.size
    flags = {
        "--tokens-per-sample": size.length,
        "--batch-size": streams_of_a_process(size, gpus),
        **size.model,
        **run.row.flags,
        **run.preset.training,
        "--max-update": size.updates,
        "--seed": run.seed,
        "--save-dir": f"{run.path}/checkpoints",
        "--num-workers": 1 if gpus else 0,
        "--log-format": "json",
        **({"--distributed-world-size": len(gpus)} if gpus else {"--cpu": True}),
    }
    theirs = flags_of(list(run.more))
    return [
        *("fairseq-train", f"{run.data}/bin", *USER_DIR, "--task", "fwp_language_modeling"),
        *words_of({flag: value for flag, value in flags.items() if flag not in theirs}),
        *run.more,
    ]


def configuration(run: Run) -> dict:
    """What two trainings must have in common to be one."""
    return {flag: value for flag, value in flags_of(train(run)).items() if flag and flag not in SPREAD} | {
        "streams": run.size.streams
    }


def evaluate(run: Run, split: str, gpus: tuple[int, ...] = ()) -> list[str]:
    """Carried: the whole text as one stream. Otherwise: a window of L tokens that moves by one token."""
    length = int(flags_of(list(run.more)).get("--tokens-per-sample", run.size.length))
    if run.row.state == "carried":
        how = {"--task": "fwp_language_modeling", "--tokens-per-sample": length, "--batch-size": 1}
    else:
        windows = {"--context-window": length - 1, "--batch-size": run.preset.window_batch}
        how = {"--task": "language_modeling", "--tokens-per-sample": length, **windows}
    flags = {
        **how,
        "--path": run.checkpoint,
        "--gen-subset": split,
        "--num-workers": 0,
        "--log-format": "none",
        **({} if gpus else {"--cpu": True}),
    }
    return ["fairseq-eval-lm", f"{run.data}/bin", *USER_DIR, *words_of(flags)]


def perplexity(run: Run, split: str) -> list[str]:
    return ["fwp", "ppl", str(run.log(split)), "--text", str(run.text(split)), "--json"]


def all_of(run: Run, gpus: tuple[int, ...]) -> list[list[str]]:
    evaluations = [command for split in EVALUATED for command in (evaluate(run, split, gpus), perplexity(run, split))]
    return [train(run, gpus), *evaluations]

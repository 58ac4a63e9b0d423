"""The models' sizes, and the training of one run, whose curve is kept: validation loss over updates and CPU seconds."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fwp_fairseq.files import write_atomically
from scripts.common import process, records, training
from scripts.common.commands import USER_DIR, as_run, flags_of, words_of
from scripts.common.folder import Folder
from scripts.common.progress import loss_problem, parse
from scripts.common.runner.parallel import RunDisplay, Shared

from .corpus import Corpus
from .rows import Row


@dataclass(frozen=True)
class Size:
    """A size of corpus and model; `training` and `decoding` are flags, `corpus` says what the texts are."""

    name: str
    corpus: Corpus
    training: dict
    decoding: dict


_MODEL = {
    "--arch": "fwp_transformer_tiny",
    **{
        f"--{part}-{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("embed-dim", 128), ("ffn-embed-dim", 256), ("attention-heads", 2))
    },
    "--dropout": 0.1,
    # The longest windows that are translated have 1,300 pieces.
    "--max-source-positions": 2048,
    "--max-target-positions": 2048,
}
DOCUMENTS = Size(
    "documents",
    Corpus(),
    training={
        **_MODEL,
        "--optimizer": "adam",
        "--adam-betas": "(0.9, 0.98)",
        "--lr-scheduler": "inverse_sqrt",
        "--criterion": "label_smoothed_cross_entropy",
        "--label-smoothing": 0.1,
        "--max-tokens": 2500,
        "--required-batch-size-multiple": 1,
        # The loss is taken every 500 updates, and each fifth checkpoint is kept for `evaluate`.
        "--save-interval-updates": 500,
        "--keep-interval-updates": 1,
        "--keep-interval-updates-pattern": 2500,
        "--no-epoch-checkpoints": True,
        "--patience": 20,
        "--log-interval": 100,
    },
    decoding={"--beam": 4, "--max-tokens": 6000, "--max-len-a": 1.5, "--max-len-b": 20},
)
SMOKE = Size(
    "smoke",
    Corpus(words=40, test_words=(40, 80), vocabulary=300, documents=40),
    training=DOCUMENTS.training
    | {"--max-tokens": 500, "--save-interval-updates": 2, "--keep-interval-updates-pattern": 2, "--log-interval": 1},
    # An untrained model never ends a sentence.
    decoding={"--beam": 2, "--max-tokens": 6000, "--max-len-a": 0, "--max-len-b": 8},
)
SIZES = {size.name: size for size in (DOCUMENTS, SMOKE)}


@dataclass(frozen=True)
class Run:
    """One row with one seed; `path` is its folder, `chosen` are values of flags that the user sets."""

    size: Size
    row: Row
    seed: int
    out: Path
    chosen: dict = field(default_factory=dict)

    DEFAULTS: ClassVar = {"lr": "3e-3", "warmup": 1000, "layer_norm": "before"}

    @property
    def settings(self) -> dict:
        """Learning rate, warm-up and place of the layer norm."""
        return self.DEFAULTS | self.chosen

    @property
    def name(self) -> str:
        other = [f"{key}-{value}" for key, value in self.settings.items() if value != self.DEFAULTS[key]]
        return "-".join([self.row.name, *other, f"seed{self.seed}"])

    @property
    def cost(self) -> float:
        return 1.0

    @property
    def path(self) -> Path:
        return self.out / self.name

    @property
    def data(self) -> Path:
        return self.out / "data"

    @property
    def curve(self) -> Path:
        return self.path / "curve.jsonl"


def train_command(run: Run, max_update: int) -> list[str]:
    before = run.settings["layer_norm"] == "before" or None
    flags = {
        "--task": "translation",
        "--source-lang": "en",
        "--target-lang": "de",
        **run.size.training,
        **run.row.flags,
        "--lr": run.settings["lr"],
        "--warmup-updates": run.settings["warmup"],
        "--encoder-normalize-before": before,
        "--decoder-normalize-before": before,
        "--seed": run.seed,
        "--max-update": max_update,
        "--save-dir": f"{run.path}/checkpoints",
        "--num-workers": 0,
        "--log-format": "json",
        "--cpu": True,
    }
    return ["fairseq-train", f"{run.data}/bin", *USER_DIR, *words_of(flags)]


def read_curve(run: Run) -> dict[int, dict]:
    """Maps updates to the validation at that point, of the session that came last to it."""
    lines = run.curve.read_text().splitlines() if run.curve.exists() else []
    return {point["updates"]: point for point in map(json.loads, lines)}


class _Display(RunDisplay):
    """The display of a training that also appends to its curve."""

    def __init__(self, run: Run, *others):
        super().__init__(*others)
        self.run, self.pid = run, 0
        self.before = max((point["cpu_seconds"] for point in read_curve(run).values()), default=0.0)

    def start(self, pid: int) -> None:
        self.pid = pid

    def line(self, text: str) -> None:
        super().line(text)
        kind, numbers = parse(text) or ("", {})
        if kind == "valid":
            point = {
                "updates": int(numbers["valid_num_updates"]),
                "valid_loss": numbers["valid_loss"],
                "valid_nll_loss": numbers["valid_nll_loss"],
                "cpu_seconds": round(self.before + _cpu_seconds(self.pid), 1),
            }
            with open(self.run.curve, "a") as file:
                file.write(json.dumps(point) + "\n")


def _cpu_seconds(pid: int) -> float:
    """The CPU time of a process and of its ended children, as Linux's /proc has it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def train(run: Run, max_update: int, shared: Shared) -> None:
    """Trains to ``max_update`` updates or until the validation loss stands still, going on where a call was stopped.

    Raises RecipeError if the training fails or another process works on the same run.
    """
    command = train_command(run, max_update)
    folder = Folder(run.path, ())
    with folder.locked():
        flags = flags_of(command)
        folder.claim({flag: value for flag, value in flags.items() if flag not in ("", "--max-update")})
        began = run.path / "began.json"
        if not began.exists():
            start = {"command": as_run(command), "environment": records.environment()}
            write_atomically(began, json.dumps(start, indent=2) + "\n")
        display = _Display(run, training.progress(command), shared, run.name)
        options = {"variables": process.environment(shared.jobs), "on_tick": shared.check, "on_start": display.start}
        found = training.train(run.path, command, display, lambda text: shared.say(f"{run.name}: {text}"), **options)
    if problem := loss_problem(found):  # this is a result too
        shared.say(f"{run.name}: {problem}; see {run.path}/train.log")

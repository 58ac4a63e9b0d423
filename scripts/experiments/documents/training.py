"""The training of one run, whose curve is kept: validation loss over updates and CPU seconds."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fwp_fairseq.files import write_atomically
from scripts.common import records, training
from scripts.common.commands import USER_DIR, as_run
from scripts.common.folder import RecipeError
from scripts.common.runner.run import Run, Work

DIRECTION = {"--source-lang": "en", "--target-lang": "de"}


def train_command(run: Run, device: dict) -> list[str]:
    flags = {
        "--task": "translation",
        **DIRECTION,
        **run.preset.training,
        **run.row.flags,
        "--seed": run.seed,
        "--save-dir": f"{run.path}/checkpoints",
        "--num-workers": 0,
        "--log-format": "json",
        **device,
    }
    return ["fairseq-train", f"{run.data}/bin", *USER_DIR, *run.train_words(flags)]


def began(run: Run) -> dict:
    """Returns the command and the environment with which the training was begun. Raises RecipeError if it was not."""
    path = run.path / "began.json"
    if not path.is_file():
        raise RecipeError(f"{path}: no such file; --rows {run.row.name} has not begun to train")
    return json.loads(path.read_text(encoding="utf-8"))


def read_curve(run: Run) -> dict[int, dict]:
    """Maps updates to the validation at that point, of the session that came last to it."""
    path = run.path / "curve.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {point["updates"]: point for point in map(json.loads, lines)}


def _cpu_seconds(pid: int) -> float:
    """The CPU time of a process and of its ended children, as Linux's /proc has it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def train(run: Run, work: Work, command: list[str]) -> dict:
    """Trains until the validation loss stands still or to the last update, going on where a call was stopped.

    Returns the summary of the log. Raises RecipeError if the training fails.
    """

    pid, before = 0, max((point["cpu_seconds"] for point in read_curve(run).values()), default=0.0)

    def start(number: int) -> None:
        nonlocal pid
        pid = number

    def line(text: str) -> None:
        kind, numbers = training.parse(text) or ("", {})
        if kind == "valid":
            point = {
                "updates": int(numbers["valid_num_updates"]),
                "valid_loss": numbers["valid_loss"],
                "valid_nll_loss": numbers["valid_nll_loss"],
                "cpu_seconds": round(before + _cpu_seconds(pid), 1),
            }
            with open(run.path / "curve.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(point) + "\n")

    def one() -> dict:
        if not (run.path / "began.json").exists():
            begin = {"command": as_run(command), "environment": records.environment()}
            write_atomically(run.path / "began.json", json.dumps(begin, indent=2) + "\n")
        return training.train(run.path, command, work.say, line, on_start=start, **work.options)

    outputs = [run.path / "checkpoints/checkpoint_best.pt"]
    return work.folder.run("train", "train", work.configuration, outputs, one, command)

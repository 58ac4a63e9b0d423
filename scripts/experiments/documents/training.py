"""The training of one run, whose curve is kept: validation loss over updates and CPU seconds."""

import json
import os
from pathlib import Path

from fwp_fairseq.cli.progress import parse
from scripts.common import records
from scripts.common.commands import DIRECTION
from scripts.common.runner.run import Run
from scripts.common.runner.work import Work


def train_command(run: Run, device: dict) -> list[str]:
    flags = run.preset.training | run.row.flags | {"--num-workers": 0} | device
    return run.training({"--task": "translation"} | DIRECTION, flags)


def best(run: Run) -> Path:
    """Returns the checkpoint with the least validation loss."""
    return run.path / "checkpoints/checkpoint_best.pt"


def read_curve(run: Run) -> dict[int, dict]:
    """Maps updates to the validation at that point, of the session that came last to it."""
    path = run.path / "curve.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    points = (records.parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1))
    return {point["updates"]: point for point in points}


def _cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process and of its ended children, as Linux's /proc has it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def train(run: Run, work: Work, command: list[str]) -> dict:
    """Trains to the last update, going on where a call was stopped; returns what the record says of it.

    Raises RecipeError if the training fails.
    """
    pid, before = 0, 0.0

    def start(number: int) -> None:
        nonlocal pid, before
        if not (run.path / "checkpoints/checkpoint_last.pt").exists():
            (run.path / "curve.jsonl").unlink(missing_ok=True)
        pid, before = number, max((point["cpu_seconds"] for point in read_curve(run).values()), default=0.0)

    def line(text: str) -> None:
        kind, numbers = parse(text) or ("", {})
        if kind == "valid":
            point = {
                "updates": int(numbers["valid_num_updates"]),
                "valid_loss": numbers["valid_loss"],
                "cpu_seconds": round(before + _cpu_seconds(pid), 1),
            }
            with open(run.path / "curve.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(point) + "\n")

    return work.train(command, best(run), on_line=line, on_start=start)

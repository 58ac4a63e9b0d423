"""Runs fairseq-train to its limit, starting where an earlier call stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import process
from .commands import flags_of
from .folder import RecipeError
from .progress import TrainingDisplay, TrainingProgress, summary


def progress(command: list[str]) -> TrainingProgress:
    flags = flags_of(command)
    limits = (("max_epoch", "--max-epoch"), ("max_update", "--max-update"))
    return TrainingProgress(**{key: int(flags[flag]) for key, flag in limits if flag in flags})


def train(run: Path, command: list[str], display: TrainingDisplay, say: Callable[[str], object], **options) -> dict:
    """Trains, and returns the summary of run/train.log, the log of all sessions; checkpoints are in run/checkpoints.

    Raises RecipeError if the training fails, or if there are checkpoints but no log of the training that made them.
    """
    checkpoints, log = run / "checkpoints", run / "train.log"
    if not (checkpoints / "checkpoint_last.pt").exists():
        log.unlink(missing_ok=True)
    elif not log.exists() or _summary(log)["updates"] is None:
        # Checked before fairseq-train appends to the log; for a finished training it would log no update.
        raise RecipeError(
            f"{log} holds no update of the training that made {checkpoints}/checkpoint_last.pt, so there is "
            f"nothing to report of it: put the output of that training into {log}, or remove {run} to train again"
        )
    else:
        say(f"resuming from {checkpoints}/checkpoint_last.pt")
    process.run(command, log, display.line, **options)
    return _summary(log)


def _summary(log: Path) -> dict:
    with open(log, encoding="utf-8", errors="replace") as lines:
        return summary(lines)

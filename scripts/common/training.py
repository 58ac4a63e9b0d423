"""Runs fairseq-train until its limit, from where an earlier call left it."""

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
    """The summary of run/train.log, which holds all sessions; checkpoints lie in run/checkpoints.

    Raises RecipeError when the training fails, and when the log knows nothing of the one that made the checkpoints.
    """
    checkpoints, log = run / "checkpoints", run / "train.log"
    try:
        if not (checkpoints / "checkpoint_last.pt").exists():
            log.unlink(missing_ok=True)
        elif not log.exists() or _summary(log)["updates"] is None:
            # Before fairseq-train appends to it: it would say nothing of a training that is finished.
            raise RecipeError(
                f"{log} holds no update of the training that made {checkpoints}/checkpoint_last.pt, so there is "
                f"nothing to report of it: put the output of that training into {log}, or remove {run} to train again"
            )
        else:
            say(f"resuming from {checkpoints}/checkpoint_last.pt")
        process.run(command, log, display.line, **options)
    finally:
        display.close()
    return _summary(log)


def _summary(log: Path) -> dict:
    with open(log, encoding="utf-8", errors="replace") as lines:
        return summary(lines)

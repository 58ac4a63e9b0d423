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

    Raises RecipeError when the training fails, and when the log knows nothing of it: then it was logged elsewhere.
    """
    checkpoints, log = run / "checkpoints", run / "train.log"
    if not (checkpoints / "checkpoint_last.pt").exists():
        log.unlink(missing_ok=True)
    else:
        say(f"resuming from {checkpoints}/checkpoint_last.pt")
    try:
        process.run(command, log, display.line, **options)
    finally:
        display.close()
    with open(log, encoding="utf-8", errors="replace") as lines:
        found = summary(lines)
    if found["updates"] is None:
        raise RecipeError(
            f"{log} holds no update of the training that made {checkpoints}/checkpoint_last.pt, so there is nothing to "
            f"report of it: put the output of that training into {log}, or remove {run} to train again"
        )
    return found

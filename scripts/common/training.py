"""Runs fairseq-train to its limit, and sums up its log (--log-format json)."""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from fwp_fairseq.cli.progress import Progress, parse
from fwp_fairseq.cli.training import lengths_of

from . import process
from .errors import RecipeError

_PARAMETERS = re.compile(r"num\. (?:shared )?model params: ([\d,]+)")

WALL = {"train_inner": "wall", "train": "train_wall"}  # seconds since the session began


def summary(lines: Iterable[str]) -> dict:
    """Summarises a log: parameters, updates, first and last training loss, best validation loss and BLEU.

    Unknown entries are None. `seconds` is the time of training and validating in all sessions, killed ones included.
    """
    totals = dict.fromkeys(("parameters", "updates", "first_loss", "last_loss", "valid_loss", "valid_bleu"))
    sessions = [0.0]
    for line in lines:
        if match := _PARAMETERS.search(line):
            totals["parameters"] = int(match[1].replace(",", ""))
            sessions.append(0.0)
        kind, numbers = parse(line) or ("", {})
        sessions[-1] = max(sessions[-1], numbers.get(WALL.get(kind, ""), 0.0))
        if kind == "train_inner" and "loss" in numbers:
            totals["updates"] = int(numbers.get("num_updates", totals["updates"] or 0))
            totals["last_loss"] = numbers["loss"]
            if totals["first_loss"] is None:
                totals["first_loss"] = numbers["loss"]
        elif kind == "train" and "train_num_updates" in numbers:
            totals["updates"] = int(numbers["train_num_updates"])
        elif kind == "valid" and math.isfinite(numbers.get("valid_loss", math.nan)):
            # A training that was killed after its last save has no later record of its updates.
            totals["updates"] = int(numbers.get("valid_num_updates", totals["updates"] or 0)) or None
            totals["valid_loss"] = min(numbers["valid_loss"], totals["valid_loss"] or math.inf)
            if "valid_bleu" in numbers:
                totals["valid_bleu"] = max(numbers["valid_bleu"], totals["valid_bleu"] or 0.0)
    return {**totals, "seconds": sum(sessions)}


def loss_problem(trained: dict) -> str | None:
    """Returns the reason why the losses of a short training are wrong, or None."""
    first, last = trained["first_loss"], trained["last_loss"]
    if first is None or last is None:
        return "the training logged no loss"
    if not (math.isfinite(first) and math.isfinite(last)):
        return f"the training loss is not finite: first {first}, last {last}"
    if not last < first:
        return f"the training loss did not fall: first {first}, last {last}"
    return None


def train(
    run: Path,
    command: list[str],
    say: Callable[[str], object],
    on_line: Callable[[str], object] = lambda line: None,
    **options,
) -> dict:
    """Trains, and returns the summary of run/train.log, the log of all sessions; checkpoints are in run/checkpoints.

    ``on_line`` is called with every line; ``options`` are those of process.run. Raises RecipeError if the training
    fails, or if there are checkpoints but no log of the training that made them.
    """
    checkpoints, log, limits = run / "checkpoints", run / "train.log", lengths_of(command)
    progress = Progress(limits.max_epoch, limits.max_update, say)
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

    def line(text: str) -> None:
        progress.line(text)
        on_line(text)

    process.run(command, log, line, **options)
    return _summary(log)


def _summary(log: Path) -> dict:
    with open(log, encoding="utf-8", errors="replace") as lines:
        return summary(lines)

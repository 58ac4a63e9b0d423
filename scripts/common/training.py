"""Runs fairseq-train to its limit, reads its log (--log-format json), and says how far it is."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from . import process
from .commands import flags_of
from .process import RecipeError
from .text import duration

SAY_EVERY_SECONDS = 60
_RECORD = re.compile(r"\| INFO \| (train_inner|train|valid) \| (\{.*\})\s*$")
_PARAMETERS = re.compile(r"num\. (?:shared )?model params: ([\d,]+)")

WALL = {"train_inner": "wall", "train": "train_wall"}  # seconds since the session began


def parse(line: str) -> tuple[str, dict[str, float]] | None:
    """Returns the kind (train_inner, train or valid) and the numbers of a line with such a record, else None."""
    match = _RECORD.search(line)
    if match is None:
        return None
    try:
        values = json.loads(match[2])
    except ValueError:
        return None
    numbers = {}
    for key, value in values.items():
        try:
            numbers[key] = float(value)
        except (TypeError, ValueError):
            continue
    return match[1], numbers


def summary(lines: Iterable[str]) -> dict:
    """Summarises a log: parameters, updates, first and last training loss, best validation loss and BLEU.

    Unknown entries are None. `seconds` is the time of training and validating in all sessions, killed ones included.
    """
    found = dict.fromkeys(("parameters", "updates", "first_loss", "last_loss", "valid_loss", "valid_bleu"))
    sessions = [0.0]
    for line in lines:
        if match := _PARAMETERS.search(line):
            found["parameters"] = int(match[1].replace(",", ""))
            sessions.append(0.0)
        kind, numbers = parse(line) or ("", {})
        sessions[-1] = max(sessions[-1], numbers.get(WALL.get(kind, ""), 0.0))
        if kind == "train_inner" and "loss" in numbers:
            found["updates"] = int(numbers.get("num_updates", found["updates"] or 0))
            found["last_loss"] = numbers["loss"]
            if found["first_loss"] is None:
                found["first_loss"] = numbers["loss"]
        elif kind == "train" and "train_num_updates" in numbers:
            found["updates"] = int(numbers["train_num_updates"])
        elif kind == "valid" and math.isfinite(numbers.get("valid_loss", math.nan)):
            # A training that was killed after its last save has no later record of its updates.
            found["updates"] = int(numbers.get("valid_num_updates", found["updates"] or 0)) or None
            found["valid_loss"] = min(numbers["valid_loss"], found["valid_loss"] or math.inf)
            if "valid_bleu" in numbers:
                found["valid_bleu"] = max(numbers["valid_bleu"], found["valid_bleu"] or 0.0)
    return {**found, "seconds": sum(sessions)}


def loss_problem(found: dict) -> str | None:
    """Why the losses of a short training are wrong, or None."""
    first, last = found["first_loss"], found["last_loss"]
    if first is None or last is None:
        return "the training logged no loss"
    if not (math.isfinite(first) and math.isfinite(last)):
        return f"the training loss is not finite: first {first}, last {last}"
    if not last < first:
        return f"the training loss did not fall: first {first}, last {last}"
    return None


class Display:
    """Says a line for each epoch, and once a minute within it, with the remaining time.

    It counts the updates of the whole training, including those of earlier sessions. If ``command`` limits the epochs,
    the total is unknown until the first record, which relates updates to (fractions of) epochs.
    """

    def __init__(self, command: list[str], say: Callable[[str], object], clock=time.monotonic):
        flags = flags_of(command)
        self.max_epoch, self.max_update = (int(flags.get(flag, 0)) for flag in ("--max-epoch", "--max-update"))
        self.say, self.clock, self.said = say, clock, clock()
        self.total = self.max_update or None
        self.begin: tuple[float, int] | None = None
        self.validation = ""

    def line(self, text: str) -> None:
        """Reads a line of the log."""
        kind, numbers = parse(text) or ("", {})
        if kind == "valid":
            names = {"valid_loss": ("loss", ".3f"), "valid_bleu": ("BLEU", ".2f")}
            found = [(title, format(numbers[name], style)) for name, (title, style) in names.items() if name in numbers]
            self.validation = "".join(f", validation {title} {value}" for title, value in found)
        elif kind:
            self._training(kind, numbers)

    def _training(self, kind: str, numbers: dict[str, float]) -> None:
        updates = int(numbers.get("num_updates", numbers.get("train_num_updates", 0)))
        epoch = numbers.get("update", numbers.get("epoch", 1))  # within an epoch, a fraction
        if self.max_epoch and updates and epoch > 0:
            total = round(self.max_epoch * updates / epoch)
            self.total = min(total, self.max_update or total)
        now = self.clock()
        self.begin = self.begin or (now, updates)
        if kind == "train_inner" and now - self.said < SAY_EVERY_SECONDS:
            return
        self.said = now
        left, (begin, first) = "", self.begin
        if self.total and first < updates < self.total:
            seconds = (self.total - updates) * max(0.0, now - begin) / (updates - first)
            left = f", about {duration(seconds)} of training left"
        loss = numbers.get("loss", numbers.get("train_loss", math.nan))
        self.say(
            f"epoch {int(numbers.get('epoch', 1))}, {updates} of {self.total} updates: training loss {loss:.3f}"
            f"{self.validation}{left}"
        )


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
    checkpoints, log, display = run / "checkpoints", run / "train.log", Display(command, say)
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
        display.line(text)
        on_line(text)

    process.run(command, log, line, **options)
    return _summary(log)


def _summary(log: Path) -> dict:
    with open(log, encoding="utf-8", errors="replace") as lines:
        return summary(lines)

"""Reads fairseq-train's log (--log-format json), and says how far a training is."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable

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


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


class TrainingProgress:
    """Counts the updates of a whole training, including those of earlier sessions.

    With `max_epoch`, the total is unknown until the first record, which relates updates to (fractions of) epochs.
    """

    def __init__(self, max_epoch: int | None = None, max_update: int | None = None, clock=time.monotonic):
        self.max_epoch, self.max_update, self.clock = max_epoch, max_update, clock
        self.total: int | None = max_update
        self.updates = 0
        self.epoch = 1
        self.loss = self.valid_loss = self.valid_bleu = math.nan
        self.begin: tuple[float, int] | None = None

    def feed(self, line: str) -> str | None:
        """Reads a line of the log; returns the kind of its record, or None."""
        parsed = parse(line)
        if parsed is None:
            return None
        kind, numbers = parsed
        if kind == "valid":
            self.valid_loss = numbers.get("valid_loss", math.nan)
            self.valid_bleu = numbers.get("valid_bleu", math.nan)
            return kind
        self.epoch = int(numbers.get("epoch", self.epoch))
        self.updates = int(numbers.get("num_updates", numbers.get("train_num_updates", self.updates)))
        self.loss = numbers.get("loss", numbers.get("train_loss", self.loss))
        epochs = numbers.get("update", float(self.epoch))
        if self.max_epoch and self.updates and epochs > 0:
            total = round(self.max_epoch * self.updates / epochs)
            self.total = total if self.max_update is None else min(total, self.max_update)
        if self.begin is None:
            self.begin = (self.clock(), self.updates)
        return kind

    def remaining(self) -> float | None:
        """The remaining seconds at the speed of this session, or None while it is unknown."""
        if self.begin is None or self.total is None or self.updates <= self.begin[1]:
            return None
        elapsed = max(0.0, self.clock() - self.begin[0])
        return max(0, self.total - self.updates) * elapsed / (self.updates - self.begin[1])


def say(text: str) -> None:
    """Prints a line at once, as a whole: several runs may do so at a time."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class TrainingDisplay:
    """Says a line for each epoch, and once a minute within it."""

    def __init__(self, progress: TrainingProgress, say: Callable[[str], object]):
        self.progress, self.say, self.said = progress, say, progress.clock()

    def line(self, text: str) -> None:
        progress = self.progress
        kind, now = progress.feed(text), progress.clock()
        if kind == "train" or (kind == "train_inner" and now - self.said >= SAY_EVERY_SECONDS):
            self.said = now
            left = progress.remaining()
            self.say(
                f"epoch {progress.epoch}, {progress.updates} of {progress.total} updates: "
                f"training loss {progress.loss:.3f}"
                + ("" if math.isnan(progress.valid_loss) else f", validation loss {progress.valid_loss:.3f}")
                + ("" if math.isnan(progress.valid_bleu) else f", validation BLEU {progress.valid_bleu:.2f}")
                + (f", about {duration(left)} of training left" if left else "")
            )

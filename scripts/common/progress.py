"""Reads fairseq-train's log (--log-format json), and displays the progress of training and decoding."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable

from .interruption import delayed

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
        elapsed = self.clock() - self.begin[0]
        return max(0, self.total - self.updates) * elapsed / (self.updates - self.begin[1])


def write_above_bars(text: str) -> None:
    """Prints a line to standard output, above the progress bars if there are any."""
    with delayed():
        from tqdm import tqdm

        tqdm.write(text)
        sys.stdout.flush()


def new_bar(total: int | None, unit: str, description: str, position: int | None = None):
    size: dict[str, object] = {"dynamic_ncols": True}
    if not sys.stderr.isatty() or 0 in os.get_terminal_size(sys.stderr.fileno()):
        # Some terminals (in containers) report 0 rows or columns, and tqdm then shows nothing.
        size = {"ncols": 100, "nrows": 20}
    with delayed():
        from tqdm import tqdm

        return tqdm(total=total, unit=unit, desc=description, position=position, leave=position is None, **size)


class TrainingDisplay:
    """Shows a bar over all updates on a terminal, and elsewhere prints one line per epoch.

    For several trainings at a time, each has a `name`, and its bar a `position` below the others.
    """

    def __init__(self, progress: TrainingProgress, terminal: bool, name: str = "", position: int | None = None):
        self.progress, self.name, self.bar = progress, name, None
        if terminal:
            self.bar = new_bar(progress.total, "update", f"{name} starting".strip(), position)

    def line(self, text: str) -> None:
        progress, bar = self.progress, self.bar
        resumed = progress.begin is None
        kind = progress.feed(text)
        if kind is None:
            return
        if bar is not None:
            if resumed and progress.begin is not None:
                # Updates of an earlier session must not count as this session's speed.
                bar.initial = bar.n = bar.last_print_n = max(0, progress.updates - 1)
                bar.start_t = bar.last_print_t = time.time()
            bar.total = progress.total
            limit = f"/{progress.max_epoch}" if progress.max_epoch else ""
            bar.set_description(f"{self.name} epoch {progress.epoch}{limit}".strip(), refresh=False)
            found = {"loss": progress.loss, "valid": progress.valid_loss, "BLEU": progress.valid_bleu}
            bar.set_postfix({k: f"{v:.2f}" for k, v in found.items() if not math.isnan(v)}, refresh=False)
            bar.n = progress.updates
            bar.refresh()
        elif kind == "train":
            left = progress.remaining()
            bleu = progress.valid_bleu
            write_above_bars(
                (f"{self.name}: " if self.name else "  ")
                + f"epoch {progress.epoch}, {progress.updates} of {progress.total} updates: "
                f"training loss {progress.loss:.3f}"
                + ("" if math.isnan(progress.valid_loss) else f", validation loss {progress.valid_loss:.3f}")
                + ("" if math.isnan(bleu) else f", validation BLEU {bleu:.2f}")
                + (f", about {duration(left)} of training left" if left else "")
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def on_terminal() -> bool:
    return sys.stderr.isatty()

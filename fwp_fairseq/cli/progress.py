"""Reads the progress of a fairseq-train from its log (--log-format json)."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable

from ..text import duration

SAY_EVERY_SECONDS = 60
_TIME_IS_OVER = "due to cumulative_training_time"  # as fairseq-train says at --stop-time-hours, or resumed after it
_RECORD = re.compile(r"\| INFO \| (train_inner|train|valid) \| (\{.*\})\s*$")


def numbers(pairs: Iterable[tuple[str, object]]) -> dict[str, float]:
    """Returns the pairs whose value is a number."""
    values = {}
    for name, value in pairs:
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            continue
    return values


def parse(line: str) -> tuple[str, dict[str, float]] | None:
    """Returns the kind (train_inner, train or valid) and the numbers of a line with such a record, else None."""
    match = _RECORD.search(line)
    if match is None:
        return None
    try:
        return match[1], numbers(json.loads(match[2]).items())
    except ValueError:
        return None


class Progress:
    """Says the remaining time, in a line for each epoch and once a minute within it.

    It counts the updates of the whole training, including those of earlier sessions. With ``max_epoch`` the total is
    unknown until the first record, which relates updates to (fractions of) epochs. 0 is no limit. ``updates`` counts
    those so far, and ``time_is_over`` tells that --stop-time-hours ends the training.
    """

    def __init__(self, max_epoch: int, max_update: int, say: Callable[[str], object], clock=time.monotonic):
        self.max_epoch, self.max_update = max_epoch, max_update
        self.say, self.clock, self.said = say, clock, clock()
        self.total = max_update or None
        self.updates, self.time_is_over = 0, False
        self.begin: tuple[float, int] | None = None
        self.validation = ""

    def line(self, text: str) -> None:
        """Reads a line of the log."""
        self.time_is_over |= _TIME_IS_OVER in text
        kind, record = parse(text) or ("", {})
        if kind == "valid":
            names = {"valid_loss": ("loss", ".3f"), "valid_bleu": ("BLEU", ".2f")}
            values = [(title, format(record[name], style)) for name, (title, style) in names.items() if name in record]
            self.validation = "".join(f", validation {title} {value}" for title, value in values)
        elif kind:
            self._training(kind, record)

    def _training(self, kind: str, record: dict[str, float]) -> None:
        updates = self.updates = int(record.get("num_updates", record.get("train_num_updates", 0)))
        epoch = record.get("update", record.get("epoch", 1))  # within an epoch, a fraction
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
        total = f"of {self.total} " if self.total else ""
        loss = record.get("loss", record.get("train_loss", math.nan))
        self.say(
            f"epoch {int(record.get('epoch', 1))}, {updates} {total}updates: training loss {loss:.3f}"
            f"{self.validation}{left}"
        )

"""The results of single runs on the synthetic task: ours, and those that the authors published (paper.json)."""

from typing import NamedTuple

from scripts.common.published import tables

_published = tables(__file__)


class Outcome(NamedTuple):
    """The result of a run. ``loss`` is the best evaluation loss, None if all were NaN."""

    loss: float | None
    solved: bool

    def __str__(self) -> str:
        if self.loss is None:
            return "NaN"
        return f"{self.loss:.4f}{'*' if self.solved else ''}" if self.loss < 1 else f"{self.loss:.2f}"


def of_record(record: dict) -> Outcome:
    return Outcome(record["best_loss"], record["stop"] == "solved")


def published(setting: int) -> dict[tuple[str, int], Outcome]:
    """Maps models and numbers of keys to what the authors published of them."""
    rows = _published("losses")
    return {(row["model"], row["S"]): Outcome(row["loss"], row["solved"]) for row in rows if row["setting"] == setting}

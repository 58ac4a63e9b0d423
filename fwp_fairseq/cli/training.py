"""One training of ``fwp train``: its folder, its command of fairseq-train, and the updates that it has made."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from . import Parser, commands
from .commands import say
from .errors import CommandError
from .progress import Progress


def lengths_of(words: list[str]) -> argparse.Namespace:
    """Returns the limits that a command of fairseq-train sets; if it repeats a flag, the last one counts."""
    parser = Parser(add_help=False, allow_abbrev=False)
    names = ["--max-source-positions", "--max-target-positions", "--max-tokens"]
    names += ["--max-update", "--max-epoch", "--patience"]
    for flag in names:
        parser.add_argument(flag, type=int, default=0)
    parser.add_argument("--stop-time-hours", type=float, default=0)
    return parser.parse_known_args(words)[0]


@dataclass(frozen=True)
class Training:
    """A training in ``folder``, by the command ``words`` of fairseq-train; ``planned`` updates fit the corpus."""

    folder: Path
    words: list[str]
    planned: int = 0

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def translations(self, language: str) -> Path:
        return self.folder / f"translations.{language}"

    def run(self, most: int | None = None) -> int | None:
        """Trains with at most ``most`` updates.

        Returns the largest number of updates that a training to be compared may make: those of this training if it
        ended because its time was over, else ``most``.
        """
        words = self.words if most is None else [*self.words, "--max-update", str(most)]
        lengths, path = lengths_of(words), self.folder / "train.log"
        progress = Progress(lengths.max_epoch, lengths.max_update, say)
        commands.show(words)
        with open(path, "a", encoding="utf-8") as log:
            status = commands.follow(words, log, progress)
        if status:
            raise CommandError(f"fairseq-train ended with status {status}; {commands.ending(path)}")
        if not progress.updates and (ended := self.updates()[1]) != "time":
            why = "--patience had ended this training" if ended else "no update was left to make"
            say(f"{why}: the results are those of the earlier call, with its flags")
        updates = progress.updates or self.updates()[0]  # if the time was over before, none were made in this session
        if not progress.time_is_over or updates is None or updates >= lengths.max_update:
            return most
        say(f"the time is over: {updates:,} of {lengths.max_update:,} updates were made")
        return updates

    def updates(self) -> tuple[int | None, str | None]:
        """Returns the updates made so far and what ended the training (patience or time), each None if unknown."""
        from .checkpoint import load_last

        if (state := load_last(self.folder)) is None:
            return None, None
        extra, limits = state.get("extra_state") or {}, lengths_of(self.words)
        history = state.get("optimizer_history") or [{}]
        waited, hours = (
            extra.get("early_stopping", {}).get("num_runs", 0),
            extra.get("previous_training_time", 0) / 3600,
        )
        reached = {"patience": 0 < limits.patience <= waited, "time": 0 < limits.stop_time_hours < hours}
        return history[-1].get("num_updates"), next((limit for limit in reached if reached[limit]), None)


def left_of(trainings: list[Training], updates: int) -> list[int]:
    """Returns how many of so many updates each training has left.

    If the time was over for one, those after it make at most as many updates.
    """
    left = []
    for made, limit in (training.updates() for training in trainings):
        left.append(0 if limit else max(0, updates - (made or 0)))
        updates = made if limit == "time" and made is not None else updates
    return left

"""The seconds that an update of a training takes, by a few updates that are not kept."""

import argparse
import contextlib
import math
import shlex
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from ..files import write_atomically
from .processes import started
from .progress import parse

UPDATES = 12
_SKIPPED = 4  # of them, during which memory is reserved and kernels are chosen
# Flags for how long a training lasts, on which the time of an update does not depend.
_LENGTH = ("--max-update", "--max-epoch", "--patience", "--stop-time-hours", "--warmup-updates")
_LENGTH += ("--save-interval-updates", "--keep-interval-updates")
# Flags for where a training reports its losses; those of the trial do not belong there.
_REPORTS = ("--tensorboard-logdir", "--wandb-project", "--azureml-logging", "--aim-repo", "--log-file")


def without(words: list[str], flags: Iterable[str]) -> list[str]:
    """Returns a command of fairseq-train, or a part of one, without these flags and their values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag, nargs="?")
    return parser.parse_known_args(words)[1]


def seconds_per_update(words: list[str], kept: Path) -> float | None:
    """Runs the first updates of the command of fairseq-train, and returns the mean time of the later ones.

    The file ``kept`` keeps the result and its command, so that a training that goes on is planned alike, and one with
    other flags is measured anew. Returns None if the command fails, which the training will explain.
    """
    words = without(words, _REPORTS)
    measured = " ".join(shlex.join(without(words, _LENGTH)).splitlines())
    with contextlib.suppress(FileNotFoundError, ValueError):
        first, command = kept.read_text(encoding="utf-8").splitlines()
        if 0 < (seconds := float(first)) < math.inf and command == measured:  # or else the file is damaged
            return seconds
    with tempfile.TemporaryDirectory() as folder:
        more = ["--save-dir", folder, "--no-save", "--disable-validation", "--max-update", UPDATES, "--log-interval", 1]
        more += ["--stop-time-hours", 0]  # no limit of time
        with started([*words, *map(str, more)]) as process:
            times = [time.monotonic() for line in process.stdout if (parse(line) or [""])[0] == "train_inner"]
    if process.returncode or len(times) < _SKIPPED + 2:
        return None
    seconds = (times[-1] - times[_SKIPPED]) / (len(times) - 1 - _SKIPPED)
    write_atomically(kept, f"{seconds:.6f}\n{measured}\n")
    return seconds

"""The seconds that an update of a training takes, by a few updates that are not kept."""

import contextlib
import math
import tempfile
import time
from pathlib import Path

from ..files import write_atomically
from .processes import started
from .progress import parse

UPDATES = 12
_SKIPPED = 4  # of them, until memory is reserved and kernels are chosen


def seconds_per_update(words: list[str], kept: Path) -> float | None:
    """Runs the first updates of the command of fairseq-train, and returns the mean time of the later ones.

    The file ``kept`` keeps the result, so that a training that goes on is planned alike. Returns None if the command
    fails, which the training will explain.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        if 0 < (seconds := float(kept.read_text())) < math.inf:  # or else the file is damaged
            return seconds
    with tempfile.TemporaryDirectory() as folder:
        more = ["--save-dir", folder, "--no-save", "--disable-validation", "--max-update", UPDATES, "--log-interval", 1]
        more += ["--stop-time-hours", 0]  # no limit of time
        with started([*words, *map(str, more)]) as process:
            times = [time.monotonic() for line in process.stdout if (parse(line) or [""])[0] == "train_inner"]
    if process.returncode or len(times) < _SKIPPED + 2:
        return None
    seconds = (times[-1] - times[_SKIPPED]) / (len(times) - 1 - _SKIPPED)
    write_atomically(kept, f"{seconds:.6f}\n")
    return seconds

"""The seconds that an update of a training takes, by a few updates that are not kept."""

import subprocess
import tempfile
import time
from pathlib import Path

from .processes import die_with_parent, environment
from .progress import parse

UPDATES = 12
_SKIPPED = 4  # of them, until memory is reserved and kernels are chosen


def seconds_per_update(words: list[str], kept: Path) -> float | None:
    """Runs the first updates of the command of fairseq-train, and returns the mean time of the later ones.

    The file ``kept`` keeps the result, so that a training that goes on is planned alike. Returns None if the command
    fails, which the training will explain.
    """
    if kept.is_file():
        try:
            return float(kept.read_text())
        except ValueError:
            kept.unlink()
    times = []
    with tempfile.TemporaryDirectory() as folder:
        more = ["--save-dir", folder, "--no-save", "--disable-validation", "--max-update", UPDATES, "--log-interval", 1]
        more += ["--stop-time-hours", 0]  # no limit of time
        with subprocess.Popen(
            [*words, *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=environment(), preexec_fn=die_with_parent,
        ) as run:  # fmt: skip
            try:
                times = [time.monotonic() for line in run.stdout if (parse(line) or [""])[0] == "train_inner"]
            except BaseException:
                run.terminate()
                raise
    if run.returncode or len(times) < _SKIPPED + 2:
        return None
    seconds = (times[-1] - times[_SKIPPED]) / (len(times) - 1 - _SKIPPED)
    kept.write_text(f"{seconds:.6f}\n")
    return seconds

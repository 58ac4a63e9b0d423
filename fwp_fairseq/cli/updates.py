"""Follows a fairseq-train that logs JSON, and says how far it is."""

import ctypes
import json
import signal
import subprocess
import sys
import time

_EVERY = 30  # seconds between two lines
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """On Linux, makes a tool die with its caller, so that it cannot go on in a folder that the next call uses."""
    if _LIBC is not None:
        PR_SET_PDEATHSIG = 1
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _record(line: str) -> dict:
    """The numbers in a line of the log; empty for a line without."""
    start = line.find("{")
    try:
        found = json.loads(line[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _left(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def follow(words: list[str], log, updates: int) -> int:
    """Runs the command, copies its output to the file ``log`` and prints a line now and then; returns its status."""
    first: tuple[float, int] | None = None
    said = -float("inf")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=die_with_parent
    ) as run:
        try:
            for line in run.stdout:
                log.write(line)
                log.flush()
                found, now = _record(line), time.monotonic()
                if "valid_loss" in found:
                    print(f"update {found['valid_num_updates']}: loss on valid {found['valid_loss']}", flush=True)
                elif "num_updates" in found and "loss" in found and now - said > _EVERY:
                    done, said = int(found["num_updates"]), now
                    first = first or (now, done)
                    speed = (done - first[1]) / (now - first[0]) if now > first[0] else 0
                    left = f", about {_left((updates - done) / speed)} left" if speed else ""
                    print(f"update {done} of at most {updates}: loss {found['loss']}{left}", flush=True)
        except BaseException:
            run.terminate()
            raise
    return run.returncode

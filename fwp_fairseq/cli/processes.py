"""The processes in which fairseq's tools run."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Makes a tool die with its caller (on Linux), so that it cannot go on in a folder that the next call uses."""
    if _LIBC is not None:
        PR_SET_PDEATHSIG = 1
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen]:
    """Starts a tool whose output is to be read, and waits for its end; terminates it if the block raises."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment(),
        preexec_fn=die_with_parent,
    ) as process:  # fmt: skip
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def cores() -> int:
    """Counts the cores that this process may use, by its affinity and the container's quota, if there is one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            usable = min(usable, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return usable


def environment(jobs: int = 1) -> dict[str, str]:
    """Returns the environment of one of `jobs` processes on this machine; variables that are set already win."""
    # The matrices of these models are too small to gain from more than 8 threads.
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, min(8, cores() // jobs)))
    # Threads that spin for long while they wait make training 4 times slower if something else uses the cores too;
    # threads that sleep at once make it a fifth slower if nothing does. So they spin briefly.
    spin = {} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "20000")}
    # Otherwise glibc returns the memory of every large tensor to the kernel and requests it again, which takes a fifth
    # of the training's time.
    keep = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
    return {**spin, **keep, **os.environ, "OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}

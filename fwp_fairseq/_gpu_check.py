"""Compares the CUDA kernels of a device with PyTorch once, in another process, before they are used.

A kernel that accesses invalid memory makes the device unusable for the rest of its process, so the check has a process
of its own and cannot harm a training. The result is kept in a file for each library, driver, version of torch and kind
of device. Other processes that ask at the same time, such as the ranks of a training, wait for it.

If a check cannot be done, for example because the device serves only one process at a time, PyTorch computes instead of
the kernels, and the next training tries the check again.
"""

import contextlib
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from . import _extension
from .files import locked, write_atomically

logger = logging.getLogger(__name__)

SECONDS = 120  # the time limit of a check; importing torch may take most of it
PASSED = "passed"  # the last line of a report without failures
UNABLE = 3  # the exit status of a check that could not be done
_DRIVER = Path("/proc/driver/nvidia/version")
_trusting = False


class Verdict(NamedTuple):
    """The result of a check.

    Attributes:
        failure: the reason not to use the kernels; empty if they passed.
        report: the output of the check.
        lasts: False if the check could not be done, as on a GPU whose memory is full, and has to be tried again.
    """

    failure: str
    report: str
    lasts: bool = True


def trust() -> None:
    """Lets this process use the kernels unchecked: for the check itself, and for the kernels' own tests."""
    global _trusting
    _trusting = True


def check(device: str, seconds: float = SECONDS) -> Verdict:
    """Compares the kernels of a device, "cpu" or "cuda:0", with PyTorch in another process."""
    package = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", f"{__package__}.ops.self_check", device]
    try:
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return _verdict(late.stdout, b"", None, f"not finished after {seconds} s")
    except OSError as error:
        return Verdict(f"could not start {sys.executable}: {error}", "", lasts=False)
    return _verdict(done.stdout, done.stderr, done.returncode, f"exit status {done.returncode}")


def _verdict(printed: bytes | None, errors: bytes, status: int | None, end: str) -> Verdict:
    """Returns the verdict on the process of a check; its ``status`` is None if it took too long.

    If a case ended the process, the last line has its name and no result, and the last line of the errors says why. The
    verdict does not last if no case began, the device could not be used, or the process was killed, by the time limit
    or for lack of memory.
    """
    report = (printed or b"").decode(errors="replace")
    lines, last = report.splitlines(), errors.decode(errors="replace").strip().splitlines()[-1:]
    if status == 0 and lines[-1:] == [PASSED]:
        return Verdict("", report)
    wrong = [line for line in lines if not line.endswith(("ok", PASSED))]
    lasts = bool(lines) and status not in (None, UNABLE, -signal.SIGKILL)
    return Verdict("; ".join(filter(None, (*wrong, *last, end))), report, lasts)


def _driver() -> str:
    """Returns the version of the GPU's driver; where the system hides it (WSL), that of the CUDA it serves."""
    try:
        return _DRIVER.read_text()
    except OSError:
        return str(torch._C._cuda_getDriverVersion())


def key(index: int) -> str:
    """Returns a hash of the library, versions and GPU for which a verdict is valid.

    The driver is one of them, because it compiles the kernels for GPUs that are newer than the library.
    """
    properties = torch.cuda.get_device_properties(index)
    parts = (
        _extension.digest(_extension.status().libraries["cuda"]), torch.__version__, torch.version.cuda, _driver(),
        properties.name, properties.major, properties.minor,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def folder() -> Path:
    """Returns the folder of the verdicts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fwp_fairseq")


def remembered(name: str, make: Callable[[], Verdict], again: bool = False) -> Verdict:
    """Returns the verdict in the file of this name; if there is none, or with ``again``, makes and keeps one.

    A verdict that does not last serves only the processes that waited for it, so that the ranks of a training do not
    check one after the other; it never replaces one that lasts.
    """
    file, begin = folder() / f"check-{name}.json", time.time()
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # in a folder without locks every process checks for itself
            file.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(file.parent, lambda: None))
        if not again:
            with contextlib.suppress(OSError, ValueError, TypeError):
                verdict = Verdict(**json.loads(file.read_text(encoding="utf-8")))
                if verdict.lasts or file.stat().st_mtime >= begin:
                    return verdict
        verdict = make()
        if verdict.lasts or not again:
            with contextlib.suppress(OSError):
                write_atomically(file, json.dumps(verdict._asdict()))
        return verdict


@cache
def failure(index: int) -> str:
    """Returns the reason not to use the kernels on this GPU, or an empty text. The first call may take a minute."""
    if _trusting:
        return ""
    verdict = remembered(key(index), lambda: check(f"cuda:{index}"))
    if not verdict.failure:
        return ""
    if verdict.lasts:
        reason = f"the CUDA kernels failed their check on device {index} ({verdict.failure}); `fwp check` repeats it"
    else:
        reason = (
            f"the CUDA kernels could not be checked on device {index} ({verdict.failure}); run `fwp check` before the "
            "training, while no other process uses the device: its result is kept"
        )
    logger.warning("fast weights: %s. PyTorch computes instead.", reason)
    return reason

"""Whether the CUDA kernels may be used on a device: they are compared with PyTorch once, in another process.

A kernel that touches memory which is not its own ends every later use of the device in its process, so nothing is
risked in that of a training. The result is kept in a file for each library, version of torch and kind of device. Other
processes that ask at the same time, such as the ranks of a training, wait for it.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from . import _extension
from .files import write_atomically

logger = logging.getLogger(__name__)

SECONDS = 120  # that a check may take; importing torch may need most of them
PASSED = "passed"  # the last line of a report without failures
_trusting = False


class Verdict(NamedTuple):
    """What failed, or an empty text; and all that the check has printed."""

    failure: str
    report: str


def trust() -> None:
    """From now on this process uses the kernels unchecked: for the check itself, and for the kernels' own tests."""
    global _trusting
    _trusting = True


def check(device: str) -> Verdict:
    """Compares the kernels of a device, "cpu" or "cuda:0", with PyTorch in another process."""
    package = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", f"{__package__}.ops.self_check", device]
    try:
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return _verdict(late.stdout, b"", f"not finished after {SECONDS} s")
    except OSError as error:
        return Verdict(f"could not start {sys.executable}: {error}", "")
    return _verdict(done.stdout, done.stderr, "" if done.returncode == 0 else f"exit status {done.returncode}")


def _verdict(printed: bytes | None, errors: bytes, end: str) -> Verdict:
    """A case that ended the process is the last line, and has no result; why is in the last line of its errors."""
    report = (printed or b"").decode(errors="replace")
    lines, last = report.splitlines(), errors.decode(errors="replace").strip().splitlines()[-1:]
    if not end and lines[-1:] == [PASSED]:
        return Verdict("", report)
    wrong = [line for line in lines if not line.endswith(("ok", PASSED))]
    return Verdict("; ".join(filter(None, (*wrong, *last, end))) or "it printed no result", report)


def key(index: int) -> str:
    """Names what a result is valid for."""
    properties = torch.cuda.get_device_properties(index)
    parts = (
        _extension.digest(_extension.status().libraries["cuda"]), torch.__version__, torch.version.cuda,
        properties.name, properties.major, properties.minor,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def folder() -> Path:
    """Where results are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fwp_fairseq")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock. In a folder that cannot be written, or without locks, every process checks for itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115
    except OSError:
        yield
        return
    with file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remembered(name: str, make: Callable[[], Verdict], again: bool = False) -> Verdict:
    """The verdict in the file of this name; else, or to find it out ``again``, that of ``make``, which is kept."""
    file = folder() / f"check-{name}.json"
    with _locked(file.with_suffix(".lock")):
        if not again:
            with contextlib.suppress(OSError, ValueError, TypeError):
                return Verdict(**json.loads(file.read_text(encoding="utf-8")))
        verdict = make()
        with contextlib.suppress(OSError):
            write_atomically(file, json.dumps(verdict._asdict()))
        return verdict


@cache
def failure(index: int) -> str:
    """Why the kernels must not be used on this CUDA device, or an empty text. The first call ever may take a minute."""
    if _trusting:
        return ""
    found = remembered(key(index), lambda: check(f"cuda:{index}")).failure
    if not found:
        return ""
    reason = f"the CUDA kernels failed their check on device {index} ({found}); `fwp check` repeats it"
    logger.warning("fast weights: %s. PyTorch computes instead.", reason)
    return reason

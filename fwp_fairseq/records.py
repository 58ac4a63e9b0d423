"""Records of runs: JSON lines that are only ever appended to, with the environment that produced them."""

import fcntl
import json
import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parent


def append(path: str | os.PathLike, record: dict) -> None:
    """Appends ``record`` to a .jsonl file as one line, on disk when this returns.

    Parallel runs wait for each other. Raises OSError (nothing stays half written), or TypeError or ValueError for what
    JSON cannot hold, NaN and infinity included.
    """
    line = json.dumps(record, ensure_ascii=False, allow_nan=False, sort_keys=True).encode() + b"\n"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                raise ValueError(f"{path}: the last line is not finished; repair it before appending")
        try:
            if file.write(line) != len(line):
                raise OSError(f"{path}: the record was not written completely, is the disk full?")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def read(*folders: str | os.PathLike) -> list[dict]:
    """All records of the folders, oldest first (by ``environment.date``, then by position): the lines of their .jsonl
    files, and the files record.json of runs at any depth. A .jsonl file may stand for its folder.

    Raises FileNotFoundError for one that is missing and ValueError naming file and line for a line that is no record.
    """
    records = []
    for folder in map(Path, folders):
        if folder.is_file():
            records += read_file(folder)
            continue
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder or file of records")
        for path in sorted(folder.glob("*.jsonl")):
            records += read_file(path)
        records += [_record(path.read_text(), str(path)) for path in sorted(folder.rglob("record.json"))]
    return sorted(records, key=lambda record: (record.get("environment") or {}).get("date", ""))


def read_file(path: str | os.PathLike) -> list[dict]:
    """The records of one .jsonl file, by position. Raises OSError, or ValueError as :func:`read` does."""
    lines = enumerate(Path(path).read_text().split("\n"), 1)
    return [_record(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _record(text: str, where: str) -> dict:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected an object, found {type(record).__name__}")
    return record


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", "-C", PACKAGE.parent, *arguments], capture_output=True, text=True)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _checkout() -> dict:
    # A copy that was carried to a machine without its .git: whoever carried it says which commit it is a clean copy of.
    if carried := os.environ.get("FWP_COMMIT"):
        if not re.fullmatch("[0-9a-f]{40}", carried):
            raise ValueError(f"FWP_COMMIT: expected the 40 hexadecimal digits of a commit, found {carried!r}")
        if _git("rev-parse", "--git-dir") is None:
            return {"commit": carried, "dirty": False}
    # An installed copy inside somebody else's checkout is not that commit: this very file must be tracked.
    if _git("ls-files", "--error-unmatch", "--", str(PACKAGE / "records.py")) is None:
        return {"commit": None, "dirty": None}
    # What is generated from records changes with every record and says nothing about the code.
    generated = ("benchmarks/results", "docs/figures", "**/*.md")
    changes = _git("status", "--porcelain", "--", ":/", *(f":(top,exclude,glob){path}" for path in generated))
    return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(changes)}


def distribution_version(*names: str) -> str | None:
    """Name and version of the first of these distributions that is installed."""
    for name in names:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def require_commit(found: dict | None = None) -> None:
    """For --record: ValueError where, by this :func:`environment` (default: now), no commit stands for the code."""
    dirty = (environment() if found is None else found)["dirty"]
    if dirty is not False:
        nothing = "none that holds this package; FWP_COMMIT names the commit of a clean copy without .git"
        what = "changes that are not committed; commit them first" if dirty else nothing
        raise ValueError(f"--record: expected a clean git checkout, found {what}")


def environment() -> dict:
    """Where and with what a run happens: date (UTC), commit, versions, processor, usable cores, GPU."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **_checkout(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": distribution_version("fairseq-fixed", "fairseq"),
        "cpu": _cpu_model(),
        "cores": usable,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }

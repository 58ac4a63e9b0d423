"""Reads and appends records of runs, and describes the environment of a run.

A record is a JSON object, a line of a .jsonl file.
"""

import fcntl
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import fwp_fairseq
from fwp_fairseq.cli.processes import cores
from fwp_fairseq.files import write_atomically

from .renamed import renamed

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks/results"
PACKAGE = Path(fwp_fairseq.__file__).resolve().parent


def read(*folders: str | os.PathLike) -> list[dict]:
    """Returns the records in the given folders and .jsonl files, oldest first.

    Records are sorted by ``environment.date``, and those of the same date by position.

    Raises FileNotFoundError for a folder or file that is missing, and ValueError for a line that is no record, naming
    file and line.
    """
    records = []
    for folder in map(Path, folders):
        if not folder.exists():
            raise FileNotFoundError(f"{folder}: no such folder or file of records")
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]:
            records += read_file(path)
    return sorted(records, key=lambda record: (record.get("environment") or {}).get("date", ""))


def read_file(path: str | os.PathLike) -> list[dict]:
    """Returns the records of one .jsonl file, line by line. Raises OSError, or ValueError as :func:`read` does."""
    try:
        lines = enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    return [_record(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def parse(text: str, where: str, **options) -> object:
    """Parses a line of JSON with the options of json.loads; raises ValueError, which names FILE:LINE, ``where``."""
    try:
        return json.loads(text, **options)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None


def _record(text: str, where: str) -> dict:
    record = parse(text, where, parse_constant=_refuse_constant)
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected an object, found {type(record).__name__}")
    if not isinstance(record.get("table", ""), str):
        raise ValueError(f"{where}: table is {record['table']!r}, expected a name")
    environment = record.get("environment") or {}
    if not isinstance(environment, dict) or not isinstance(environment.get("date", ""), str):
        raise ValueError(f"{where}: environment is {environment!r}, expected an object with a date")
    try:
        return renamed(record)
    except KeyError as error:
        raise ValueError(f"{where}: a record lacks {error}") from None


def append(path: str | os.PathLike, *new: dict, key: Callable[[dict], object] | None = None) -> int:
    """Appends records to a .jsonl file, a line each, in one write; returns how many when they are on the disk.

    With ``key``, those whose key the file has already are left out. The file is locked meanwhile, so that parallel runs
    wait for each other, and of several with the same records one alone appends them. Raises OSError if they cannot be
    written (what was written is removed), TypeError or ValueError for values that JSON cannot represent, including NaN
    and infinity, and ValueError if the file is one of benchmarks/results and the code had uncommitted changes.
    """
    if Path(path).resolve().parent == FOLDER:  # a run may have begun without --record, in a checkout with changes
        for record in new:
            require_commit(record["environment"])
    lines = [_line(record) for record in new]  # what JSON cannot represent is refused before the file is made
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                raise ValueError(f"{path}: the last line does not end with a newline; repair it before you append")
        if key is not None:
            known = [key(record) for record in read_file(path)]
            lines = [line for line, record in zip(lines, new, strict=True) if key(record) not in known]
        content = b"".join(lines)
        try:
            if file.write(content) != len(content):
                raise OSError(f"{path}: the records were not written completely, is the disk full?")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
    return len(lines)


def _line(record: dict) -> bytes:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, sort_keys=True).encode() + b"\n"


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", "-C", PACKAGE.parent, *arguments], capture_output=True, text=True)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _checkout() -> dict:
    # FWP_COMMIT names the commit of a clean copy that was taken to another machine without its .git.
    if carried := os.environ.get("FWP_COMMIT"):
        if not re.fullmatch("[0-9a-f]{40}", carried):
            raise ValueError(f"FWP_COMMIT: expected the 40 hexadecimal digits of a commit, found {carried!r}")
        if _git("rev-parse", "--git-dir") is None:
            return {"commit": carried, "dirty": False}
    # The package may be installed inside a checkout of another project, whose commit says nothing about this code. So
    # the package itself must be tracked.
    if _git("ls-files", "--error-unmatch", "--", str(PACKAGE / "__init__.py")) is None:
        return {"commit": None, "dirty": None}
    # Generated files change with every record and say nothing about the code.
    generated = ("benchmarks/results", "docs/figures", "**/*.md")
    changes = _git("status", "--porcelain", "--", ":/", *(f":(top,exclude,glob){path}" for path in generated))
    return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(changes)}


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def checkouts(path: Path) -> list[dict]:
    """Adds the checkout of this code to those that a file names, and returns them all."""
    known = json.loads(path.read_text()) if path.exists() else []
    here = environment()
    if (now := {"commit": here["commit"], "dirty": here["dirty"]}) not in known:
        known.append(now)
        write_atomically(path, json.dumps(known))
    return known


def require_commit(where: dict | None = None) -> None:
    """Raises ValueError if the code is not exactly that of a commit, as --record requires.

    ``where`` is the :func:`environment` to judge; by default it is determined now.
    """
    dirty = (environment() if where is None else where)["dirty"]
    if dirty is not False:
        nothing = "none that tracks this package; for a clean copy without .git, set FWP_COMMIT to its commit"
        what = "uncommitted changes; commit them first" if dirty else nothing
        raise ValueError(f"--record: expected a clean git checkout, found {what}")


def environment() -> dict:
    """Returns the environment of a run: date (UTC), commit, versions, kernels, processor, usable cores, GPU."""
    # These take seconds, for which those that only read records need not wait.
    import torch

    from fwp_fairseq import _extension
    from fwp_fairseq.cli.info import distribution_version

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **_checkout(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": distribution_version("fairseq-fixed", "fairseq"),
        "kernels": sorted(_extension.status().libraries),
        "cpu": _cpu_model(),
        "capability": torch.backends.cpu.get_cpu_capability(),  # of two processors with the same name, too
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }

"""What the processes of one run of tests make once and share, see pytest-xdist."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of the whole run."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Others that want the lock wait, also those of other runs; it goes with the process that holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(path: Path, make: Callable[[], object]) -> object:
    """What ``make`` returned to the first process that asked for this file, read from it as JSON."""
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            content = json.dumps(make())
            path.write_text(content, encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))

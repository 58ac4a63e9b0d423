"""Lets the processes of one test run (pytest-xdist) make costly things once and share them."""

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
    """Holds a lock, for which processes of other runs wait too; it is released when its process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(path: Path, make: Callable[[], object]) -> object:
    """Returns the result of ``make``, which only the first process calls and stores in this file as JSON."""
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            content = json.dumps(make())
            path.write_text(content, encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))

"""Runs Python scripts in processes that have torch already, without the seconds that each would need to import it."""

import multiprocessing
import os
import sys
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "setuptools"])


def _run(code: str, folder: Path, environment: dict[str, str], log: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.path.insert(0, "")
    sys.argv = ["-c"]
    exec(code, {"__name__": "__main__"})


def run(code: str, folder: Path, environment: dict[str, str], log: Path) -> tuple[int, str]:
    """The exit status and the output, which is written to ``log``, of ``python -c`` in a folder.

    The variables of the environment that torch reads while it is imported have no effect.
    """
    process = _CONTEXT.Process(target=_run, args=(code, folder, environment, log))
    process.start()
    process.join(300)
    assert process.exitcode is not None, f"the script has not ended: {log.read_text()}"
    return process.exitcode, log.read_text()

"""Runs the `fwp` command as its user does, in this process or in a new one."""

import subprocess
import sys
from typing import NamedTuple

import pytest

from fwp_fairseq.cli import main


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def fwp(capsys):
    """Runs ``fwp("d-dot", "--nu", "2")`` in this process."""

    def run(*arguments) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def fwp_process():
    """Runs the command in a new process."""

    def run(*arguments, **options) -> Result:
        command = [sys.executable, "-m", "fwp_fairseq", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def refused(fwp):
    """Runs a command that must fail; returns its one line of error."""

    def run(status: int, *arguments) -> str:
        result = fwp(*arguments)
        assert result.status == status, result
        lines = result.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith(f"fwp {arguments[0]}: error: "), result.err
        return lines[0]

    return run

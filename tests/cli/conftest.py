"""Runs the `fwp` command as its user does, in this process or in a new one."""

import subprocess
import sys

import pytest

from fwp_fairseq.cli import main
from tests.commands import Result, refusal, runner


@pytest.fixture
def fwp(capsys):
    """Runs ``fwp("d-dot", "--nu", "2")`` in this process."""
    return runner(capsys, main)


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
    return lambda status, *arguments: refusal(fwp, f"fwp {arguments[0]}", status, *arguments)

"""Runs python -m scripts.results in this process."""

from typing import NamedTuple

import pytest

from scripts.results.__main__ import main


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def results(capsys):
    def run(*arguments) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def refused(results):
    """Runs what must fail; returns the one line of error."""

    def run(status: int, *arguments) -> str:
        result = results(*arguments)
        assert result.status == status, result
        lines = result.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("scripts.results: error: "), result.err
        return lines[0]

    return run

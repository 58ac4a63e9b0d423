"""Runs a program's main in this process, as its user does."""

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    status: int
    out: str
    err: str


def runner(capsys, main: Callable[[list[str]], int]) -> Callable[..., Result]:
    """``run("d-dot", "--nu", 2)``: status, and what was printed."""

    def run(*arguments) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


def refusal(run: Callable[..., Result], begin: str, status: int, *arguments) -> str:
    """The one line of error, which begins so, of what must fail."""
    result = run(*arguments)
    assert result.status == status, result
    lines = result.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"{begin}: error: "), result.err
    return lines[0]

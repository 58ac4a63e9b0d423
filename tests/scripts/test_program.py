"""Signals end a program with its status; errors in one line."""

import signal

import pytest

from scripts.common import program
from scripts.common.process import ROOT, RecipeError


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    monkeypatch.chdir(ROOT)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_the_work_and_later_ones_change_nothing(number, status, capsys):
    assert program.run(lambda: signal.raise_signal(number), "goes on") == status
    assert capsys.readouterr().err == "\nstopped; the same command goes on\n"
    signal.raise_signal(number)


def test_an_ignored_ctrl_c_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert program.run(lambda: signal.raise_signal(signal.SIGINT), "goes on") == 0


def test_an_error_is_one_line(capsys):
    def work():
        raise RecipeError("pretended")

    assert program.run(work, "goes on") == 1
    assert capsys.readouterr().err == "error: pretended\n"

"""Signals become exceptions at once, or at the end of a block that delays them."""

import signal

import pytest

from scripts.common import interruption


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(interruption, "_depth", 0)
    monkeypatch.setattr(interruption, "_delayed", None)
    interruption.stop_on_signals()
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


EXPECTED = [
    (signal.SIGINT, KeyboardInterrupt),
    (signal.SIGTERM, interruption.Stopped),
    (signal.SIGHUP, interruption.Stopped),
]


@pytest.mark.parametrize("number, error", EXPECTED)
def test_a_signal_is_an_exception(number, error):
    with pytest.raises(error):
        signal.raise_signal(number)


@pytest.mark.parametrize("number, error", EXPECTED)
def test_a_delayed_signal_waits_for_the_end_of_the_outermost_block(number, error):
    reached = []
    with pytest.raises(error), interruption.delayed():
        with interruption.delayed():
            signal.raise_signal(number)
            reached.append("inner")
        reached.append("outer")
    assert reached == ["inner", "outer"]
    with interruption.delayed():
        pass  # the exception is raised only once


def test_it_comes_through_between_two_blocks():
    reached = []
    with pytest.raises(interruption.Stopped):
        for number in range(3):
            with interruption.delayed():
                if number == 1:
                    signal.raise_signal(signal.SIGTERM)
                reached.append(number)
    assert reached == [0, 1]


def test_it_goes_before_an_error_of_the_block():
    with pytest.raises(interruption.Stopped), interruption.delayed():
        signal.raise_signal(signal.SIGTERM)
        raise OSError


def test_an_ignored_ctrl_c_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interruption.stop_on_signals()
    signal.raise_signal(signal.SIGINT)


def test_what_comes_while_it_ends_changes_nothing(capsys):
    assert interruption.status(KeyboardInterrupt(), "goes on") == 130
    signal.raise_signal(signal.SIGINT)
    assert interruption.status(interruption.Stopped("SIGHUP"), "goes on") == 143
    assert capsys.readouterr().err.count("stopped; the same command goes on") == 2

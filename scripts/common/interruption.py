"""Signals that end a recipe: they become exceptions, and never in the middle of something that would swallow them."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

# Of the main thread: Python runs handlers in no other.
_depth = 0
_waiting: BaseException | None = None


class Stopped(BaseException):
    """SIGTERM or SIGHUP: unlike Ctrl-C on a terminal, the tool has not received it."""


INTERRUPTIONS = (KeyboardInterrupt, Stopped)


def stop_on_signals() -> None:
    """From now on SIGTERM and SIGHUP raise Stopped, SIGINT raises KeyboardInterrupt unless it is ignored (nohup)."""

    def stop(number, frame):
        global _waiting
        error = KeyboardInterrupt() if number == signal.SIGINT else Stopped(signal.Signals(number).name)
        if not _depth:
            raise error
        _waiting = error

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)


def status(interruption: BaseException, how_to_go_on: str) -> int:
    """The exit status of a program that one of INTERRUPTIONS ended; says so."""
    global _depth
    _depth += 1  # it is ending: later signals change nothing
    print(f"\nstopped; the same command {how_to_go_on}", file=sys.stderr)
    return 128 + (signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM)


@contextlib.contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Exceptions of signals wait for the end of the block, or for a call of the function that it gives.

    Raised anywhere they can get lost: an import drops one that hits a callback of its locks, and tqdm's locks replace
    it by an AttributeError. In other threads than the main one there is nothing to hold.
    """
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    _depth += 1
    try:
        yield _let_through
    finally:
        _depth -= 1
        if not _depth:
            _let_through()


def _let_through() -> None:
    global _waiting
    if _waiting is not None:
        error, _waiting = _waiting, None
        raise error

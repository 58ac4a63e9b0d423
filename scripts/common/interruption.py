"""Turns the signals that end a recipe into exceptions, but not inside code that would swallow these."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

# Both belong to the main thread, because Python runs signal handlers in no other.
_depth = 0
_waiting: BaseException | None = None


class Stopped(BaseException):
    """SIGTERM or SIGHUP was received. Unlike Ctrl-C on a terminal, it did not reach the running tool too."""


INTERRUPTIONS = (KeyboardInterrupt, Stopped)


def stop_on_signals() -> None:
    """Makes SIGTERM and SIGHUP raise Stopped, and SIGINT KeyboardInterrupt unless it is ignored (nohup)."""

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
    """Prints that the program was stopped, and returns its exit status; ``interruption`` is one of INTERRUPTIONS."""
    global _depth
    _depth += 1  # the program is ending, so later signals are ignored
    print(f"\nstopped; the same command {how_to_go_on}", file=sys.stderr)
    return 128 + (signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Delays exceptions of signals to the end of the outermost block.

    Exceptions raised in the middle of other code can get lost: an import drops one that hits a callback of its locks,
    and tqdm's locks replace it by an AttributeError. Outside of the main thread this does nothing.
    """
    global _depth, _waiting
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth and _waiting is not None:
            error, _waiting = _waiting, None
            raise error

"""Turns the signals that end a recipe into exceptions, and delays them in code in which an exception would get lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

# Only the main thread uses these two, because Python runs signal handlers there.
_depth = 0  # of nested blocks that delay exceptions
_delayed: BaseException | None = None


class Stopped(BaseException):
    """SIGTERM or SIGHUP was received. Unlike Ctrl-C on a terminal, it did not reach the running tool as well."""


INTERRUPTIONS = (KeyboardInterrupt, Stopped)


def stop_on_signals() -> None:
    """Makes SIGTERM and SIGHUP raise Stopped, and SIGINT raise KeyboardInterrupt unless it is ignored (nohup)."""

    def stop(number, frame):
        global _delayed
        error = KeyboardInterrupt() if number == signal.SIGINT else Stopped(signal.Signals(number).name)
        if not _depth:
            raise error
        _delayed = error

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)


def status(interruption: BaseException, how_to_go_on: str) -> int:
    """Prints that the program was stopped, and returns its exit status; ``interruption`` is one of INTERRUPTIONS."""
    global _depth
    _depth += 1  # never lowered again, so later signals have no effect
    print(f"\nstopped; the same command {how_to_go_on}", file=sys.stderr)
    return 128 + (signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM)


@contextlib.contextmanager
def delayed() -> Iterator[None]:
    """Delays the exceptions of signals to the end of the block, or of the outermost one if blocks are nested.

    An exception that is raised in the middle of other code can get lost: an import drops it if it occurs in a callback
    of the import's locks, and tqdm's locks replace it by an AttributeError. In other threads than the main one, this
    does nothing.
    """
    global _depth, _delayed
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth and _delayed is not None:
            error, _delayed = _delayed, None
            raise error

"""Code that the programs of all experiments share: paths of the command line, signals and the exit status."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fwp_fairseq.cli.errors import CommandError
from fwp_fairseq.files import reason

from . import process
from .errors import RecipeError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """SIGTERM or SIGHUP was received. Unlike Ctrl-C on a terminal, it did not reach the running tool as well."""


def stop_on_signals() -> None:
    """Makes SIGTERM and SIGHUP raise Stopped, and SIGINT raise KeyboardInterrupt unless it is ignored (nohup)."""

    def stop(number, frame):
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(signal.Signals(number).name)

    for number in _SIGNALS:
        if number != signal.SIGINT or signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, stop)


def from_root(path: Path | None) -> Path | None:
    """Returns a path of the command line as a path from the repository root, or an absolute path if it lies elsewhere.

    None, for a path that was not given, stays None. Commands printed with such paths can be copied and run in the
    repository root. A relative ``path`` starts at FWP_CALLER_FOLDER, in which a shell script keeps the user's folder,
    or else at the current folder.
    """
    if path is None:
        return None
    path = Path(os.path.abspath(Path(os.environ.get("FWP_CALLER_FOLDER", ".")) / path))
    return path.relative_to(process.ROOT) if path.is_relative_to(process.ROOT) else path


def run(work: Callable[[], int | None], how_to_go_on: str) -> int:
    """Calls ``work`` in the repository root and returns the exit status.

    If an error or a signal ends the work early, this prints a line about it; after a signal, the line ends with
    ``how_to_go_on``.
    """
    os.chdir(process.ROOT)
    stop_on_signals()
    try:
        return work() or 0
    except (RecipeError, CommandError, OSError, ValueError) as error:
        print(f"error: {reason(error)}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Stopped) as stop:
        for number in _SIGNALS:  # it is ending already
            signal.signal(number, signal.SIG_IGN)
        print(f"\nstopped; the same command {how_to_go_on}", file=sys.stderr)
        return 128 + (signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM)

"""What every recipe's program does around its work: the paths it is given, where it runs, how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from . import interruption, process
from .folder import RecipeError


def from_root(path: Path) -> Path:
    """A path of the command line, from the repository root where it lies below it: printed commands can be copied.

    It is relative to the folder that a shell script has left, FWP_CALLER_FOLDER, or to that of the process.
    """
    path = Path(os.path.abspath(Path(os.environ.get("FWP_CALLER_FOLDER", ".")) / path))
    return path.relative_to(process.ROOT) if path.is_relative_to(process.ROOT) else path


def run(work: Callable[[], int | None], how_to_go_on: str) -> int:
    """Calls ``work`` in the repository root; returns the exit status, after a line for what ended it early."""
    os.chdir(process.ROOT)
    interruption.stop_on_signals()
    try:
        return work() or 0
    except (RecipeError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except interruption.INTERRUPTIONS as stop:
        return interruption.status(stop, how_to_go_on)

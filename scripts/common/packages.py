"""Checks that the environment has the packages that experiments need. Standard library only."""

from __future__ import annotations

import importlib.util
import sys

from .folder import RecipeError

NEEDED = ("torch", "fairseq", "fairseq_cli", "sacrebleu", "sacremoses", "sentencepiece")


def missing() -> list[str]:
    """The packages that cannot be found. They are only looked up, because importing them takes seconds."""
    old = [] if sys.version_info >= (3, 10) else ["Python 3.10 or newer"]
    return old + [name for name in NEEDED if importlib.util.find_spec(name) is None]


def require() -> None:
    """Raises RecipeError if a package is missing; the message names the interpreter and the missing packages."""
    if found := missing():
        raise RecipeError(
            f"{sys.executable} lacks {', '.join(found)}. Install them (README, Install into your own environment), run "
            "with the interpreter of an environment that has them, or make .venv with scripts/environment.sh"
        )

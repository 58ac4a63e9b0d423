"""Checks that the environment has the packages that the recipes need: `python -m scripts.common.packages`.

The command prints the interpreter if nothing is missing; otherwise it prints what is missing and ends with status 1.
Standard library only.
"""

from __future__ import annotations

import importlib.util
import sys

from .folder import RecipeError

NEEDED = ("torch", "fairseq", "fairseq_cli", "sacrebleu", "sacremoses", "sentencepiece", "tqdm")


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


if __name__ == "__main__":
    try:
        require()
    except RecipeError as error:
        sys.exit(f"error: {error}")
    print(sys.executable)

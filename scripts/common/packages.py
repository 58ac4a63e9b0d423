"""What the recipes need of the environment they run in: `python -m scripts.common.packages` says whether it is there.

Prints the interpreter when nothing is missing, else what is, with status 1. Standard library only.
"""

from __future__ import annotations

import importlib.util
import sys

from .folder import RecipeError

NEEDED = ("torch", "fairseq", "fairseq_cli", "sacrebleu", "sacremoses", "sentencepiece", "tqdm")


def missing() -> list[str]:
    """The packages that cannot be found; they are not imported, which takes seconds."""
    old = [] if sys.version_info >= (3, 10) else ["Python 3.10 or newer"]
    return old + [name for name in NEEDED if importlib.util.find_spec(name) is None]


def require() -> None:
    """Raises RecipeError naming the interpreter and what it lacks."""
    if found := missing():
        raise RecipeError(
            f"{sys.executable} lacks {', '.join(found)}. Install them (README, Install into your own environment), run "
            "with the interpreter of an environment that has them, or make .venv by scripts/environment.sh"
        )


if __name__ == "__main__":
    try:
        require()
    except RecipeError as error:
        sys.exit(f"error: {error}")
    print(sys.executable)

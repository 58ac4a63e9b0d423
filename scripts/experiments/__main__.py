"""Runs an experiment: python -m scripts.experiments NAME [OPTIONS]; NAME --help describes it.

Every experiment stands in a folder of this name: its rows, its program (recipe.py) and its table. `NAME --help`, or a
README.md beside them, says what it costs.
"""

import importlib
import sys
from pathlib import Path

from scripts.common.runner import reproduction

NAMES = sorted(path.parent.name for path in Path(__file__).parent.glob("*/recipe.py"))


def main(argv: list[str]) -> int:
    """Returns the exit status: 0, 1 if something failed, 2 for wrong arguments."""
    if argv and argv[0] in NAMES:
        name, *rest = argv
        return reproduction.main(importlib.import_module(f"scripts.experiments.{name}.recipe").EXPERIMENT, rest)
    print(f"usage: python -m scripts.experiments NAME [OPTIONS]\n\n{__doc__}\nNAME: {', '.join(NAMES)}")
    return 0 if argv in (["-h"], ["--help"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

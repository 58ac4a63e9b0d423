"""Measures beam search over the length of the output: `python -m benchmarks.decoding_length --threads 1`.

Four documents are decoded with beam 4 at every length, so that the memory of each hypothesis becomes visible. All else,
including the check before timing, is as in :mod:`benchmarks.decoding`.
"""

import sys

from .corpus import DOCUMENTS
from .decoding import check, prepare
from .models import ModelCase
from .whole_models import Work
from .whole_models import main as run_program

SENTENCES = 4
_ROWS = ("dpfp256", "delta256", "elu")


def _cases(size: str) -> list[ModelCase]:
    # Short documents are timed more often, because chance weighs more in their short times.
    return [
        ModelCase(size, data, SENTENCES * length, 1, max(1, 1024 // length), _ROWS)
        for data, length in DOCUMENTS.items()
    ]


WORK = Work("decoding-length", "tokens", {"cpu": _cases("tiny"), "cuda": _cases("big")}, check, prepare, repeats=1)


def main(argv: list[str] | None = None) -> int:
    return run_program(WORK, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())

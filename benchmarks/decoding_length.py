"""Measures beam search over the length of the output: `python -m benchmarks.decoding_length --threads 1`.

Four documents are decoded with beam 4 at every length, so that the memory of each hypothesis becomes visible; their
sources are as long as the outputs, or those of sentences. Beside our models in float32 stand the hybrid with packed
weights, as `fwp translate` has them, and in int8, both also with a window of 64 positions of the source; the model of
`fwp train --passage`; and fairseq's Transformer in CTranslate2. On a GPU 8 and 64 documents are decoded by the base
model, in float16. All else is as in :mod:`benchmarks.decoding`.
"""

import sys

from .corpus import DOCUMENTS, LONG_OUTPUTS
from .decoding import check, prepare
from .models import DECODERS, ModelCase
from .whole_models import Work, run_program

SENTENCES = 4
_SENTENCES_ON_GPU = (8, 64)
_ROWS = ("hybrid", "dpfp,d-dot=256", "elu")
_LONGEST = {"tiny": 2048, "base": 1024}


def _cases(size: str, rows: tuple[str, ...]) -> list[ModelCase]:
    # Short documents are timed more often, because chance weighs more in their short times.
    return [
        ModelCase(size, data, SENTENCES * length, 1, max(1, 1024 // length), rows)
        for data, length in (DOCUMENTS | LONG_OUTPUTS).items()
        if length <= _LONGEST[size]
    ]


_CASES = {
    "cpu": [case for size in ("tiny", "base") for case in _cases(size, (*_ROWS, *DECODERS))],
    "cuda": [
        ModelCase("base", data, sentences * length, 1, max(1, 512 // length), _ROWS, sentences)
        for data, length in DOCUMENTS.items()
        if length <= _LONGEST["base"]
        for sentences in _SENTENCES_ON_GPU
    ],
}


WORK = Work("decoding-length", "tokens", _CASES, check, prepare, repeats=1, decoders=tuple(DECODERS))


def main(argv: list[str] | None = None) -> int:
    return run_program(WORK, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Measures tokens per second of beam search with our models and fairseq's Transformer: `python -m benchmarks.decoding`.

It decodes as fairseq-generate does, with the task's iterator, generator and inference step, and beam 4. The models are
untrained, and every hypothesis of a batch gets as many tokens as its references have on average, so that all models do
the same steps. A model is timed only after the scores of its hypotheses agree with those of the reference in float64;
the exit status is 1 if they do not.
"""

import sys

import torch

from fwp_fairseq.modules.int8 import quantize_
from fwp_fairseq.modules.packed import pack_
from fwp_fairseq.modules.softmax_cross_attention import set_source_window_

from . import ctranslate2_engine, model_gate, models
from .models import ModelCase
from .whole_models import Work, run_program

BEAM = 4
_SOURCE_WINDOW = 64  # positions of the source that a step of the rows with a window reads
_INT8 = 2e-2  # permitted error of a score with linear layers in eight bits
# What `fwp translate` does to the models of a row; it also runs them in inference mode, as fairseq does not.
_CHANGED = {
    "hybrid-packed": pack_,
    "hybrid-int8": quantize_,
    "hybrid-window": pack_,
    "hybrid-int8-window": quantize_,
    "passages-packed": pack_,
    "passages-window": pack_,
}
_FEW = ("dpfp,d-dot=256", "dpfp,d-dot=256,update-rule=delta")
CASES = {
    "cpu": [
        ModelCase("tiny", "multi30k", 2000, 2, 3),
        ModelCase("base", "multi30k", 4000, 1, 2),  # as many tokens as `fwp translate` puts into a batch
        ModelCase("base", "wmt", 4000, 1, 2),
        ModelCase("tiny", "512", 12000, 1, 2),
        ModelCase("tiny", "2048", 12000, 1, 1, _FEW),
        ModelCase("base", "512", 4096, 1, 1, _FEW),
    ],
    "cuda": [
        ModelCase("big", "wmt", 8192, 4, 3),
        ModelCase("big", "512", 8192, 1, 2),
        ModelCase("big", "2048", 8192, 1, 1),
    ],
}


def _dtype(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.float16  # fairseq-generate has --fp16 and no --bf16


def searching(task, case: ModelCase, row: str, model, window: int = _SOURCE_WINDOW):
    """Returns ``search(sample, length)``, which gives fairseq's hypotheses of ``length`` tokens and end of sentence."""
    cfg = models.configuration(case.size, row)
    cfg.generation.beam = BEAM
    model.prepare_for_inference_(cfg)
    if row.endswith("-window"):
        set_source_window_(model, window)
    if row in _CHANGED and next(model.parameters()).dtype == torch.float32:  # the gate's exact model is wider
        _CHANGED[row](model)
    generator = task.build_generator([model], cfg.generation)

    def search(sample: dict, length: int) -> list:
        generator.max_len_a, generator.min_len, generator.max_len_b = 0, length, length
        with torch.inference_mode(row in _CHANGED):
            return task.inference_step(generator, [model], sample)

    return search


def check(task, case: ModelCase, row: str, device: str) -> None:
    if row in ctranslate2_engine.TYPES:
        return ctranslate2_engine.check(task, case, row)

    # Rounding to eight bits moves places, and with them what a small window reads. Float32 checks that windows move.
    window = _SOURCE_WINDOW if "-int8" in row else 6

    def hypotheses(model, sample):
        return searching(task, case, row, model, window)(sample, 12)

    model_gate.check_decoding(task, case, row, device, _dtype(device), hypotheses, _INT8 if "-int8" in row else None)


def prepare(task, case: ModelCase, row: str, device: str):
    model = models.build_model(task, case.size, row).to(device, _dtype(device)).eval()
    if row in ctranslate2_engine.TYPES:
        translate = ctranslate2_engine.prepare(task, case, row, model, BEAM)
    else:
        search = searching(task, case, row, model)

        def translate(sample: dict, length: int) -> int:
            # An end of sentence follows.
            return sum(len(hypotheses[0]["tokens"]) for hypotheses in search(sample, length - 1))

    return lambda sample: translate(sample, round(sample["ntokens"] / sample["nsentences"]))


WORK = Work("decoding", "tokens", CASES, check, prepare, repeats=1, decoders=tuple(models.DECODERS))


def main(argv: list[str] | None = None) -> int:
    return run_program(WORK, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())

"""BLEU over d_dot: the rows of Schlag et al. 2021, Table 1, at one of several scales."""

from scripts.common.runner.call import Call
from scripts.translation.experiment import Translation

from . import wmt14
from .presets import PRESETS


class BleuVsDDot(Translation):
    name, file, presets = "bleu_vs_d_dot", "bleu_vs_d_dot.jsonl", PRESETS
    description = """\
BLEU over d_dot: trains, decodes, scores and records the rows of Schlag et al. 2021, Table 1, at one of several scales.

  --preset multi30k --jobs 2                 all rows, two at a time; each takes minutes
  --preset wmt14 --gpus 0,1,2,3,4,5,6,7      the paper's own experiment, not run here
  --preset multi30k --dry-run                what is not done yet, with its commands
"""

    def preparation(self, call: Call) -> list[list[str]]:
        return [wmt14.preprocess(call.data)] if call.preset.name == wmt14.NAME else []

    def prepare(self, call: Call) -> None:
        if call.preset.name == wmt14.NAME:
            wmt14.prepare(call.data)
        else:
            super().prepare(call)


EXPERIMENT = BleuVsDDot()

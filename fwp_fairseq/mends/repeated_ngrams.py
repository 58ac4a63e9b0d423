"""--no-repeat-ngram-size compares the pieces of a hypothesis without the padding behind them, also for N = 1.

fairseq compares the end of the buffer in which a hypothesis grows, instead of the end of the hypothesis.
"""

import math

from fairseq.ngram_repeat_block import NGramRepeatBlock

from . import around


@around(NGramRepeatBlock, "_no_repeat_ngram", ours=True)
def block_without_pads(block, self, tokens, lprobs, bsz: int, beam_size: int, step: int):
    if self.no_repeat_ngram_size == 1:  # fairseq compares the whole hypothesis with a single piece
        return lprobs.scatter(1, tokens[:, 1 : step + 1], -math.inf)
    return block(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)

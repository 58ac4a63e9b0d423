"""Lets --diverse-beam-groups decode sentences of any number.

fairseq uses the number of a sentence in the data as its position in the batch.
"""

from fairseq.search import DiverseBeamSearch

from . import around


@around(DiverseBeamSearch, "step")
def step_by_place(search, self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None):
    """Replaces the numbers of the unfinished sentences by their positions in the batch of the first step."""
    if original_batch_idxs is not None:
        if step == 0:
            self.numbers = original_batch_idxs
        original_batch_idxs = (original_batch_idxs[:, None] == self.numbers).int().argmax(1)
    return search(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)

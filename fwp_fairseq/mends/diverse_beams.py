"""Lets --diverse-beam-groups decode sentences of any number.

Symptom: --diverse-beam-groups 2 ends in an IndexError if the number of a sentence is at least the batch size.
Cause: fairseq uses the number of a sentence in the data as its position in the batch.
Test: tests/mends/test_diverse_beams.py::test_translations_do_not_depend_on_the_numbers_of_sentences
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

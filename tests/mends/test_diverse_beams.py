"""Diverse beam search depends on the sentences, and not on their numbers in the data."""

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.search import DiverseBeamSearch

import fwp_fairseq.mends  # noqa: F401


@pytest.mark.parametrize("numbers", [[2, 1, 0], [7, 400, 3]])
def test_translations_do_not_depend_on_the_numbers_of_sentences(numbers):
    dictionary = Dictionary()
    for word in "abcdef":
        dictionary.add_symbol(word)

    def decoded(numbers):
        """Two sentences are left after the first step, and one after the second."""
        random, search = torch.Generator().manual_seed(1), DiverseBeamSearch(dictionary, 2, 0.5)
        found, ids = [], torch.tensor(numbers)
        for step, left in enumerate(([0, 1, 2], [0, 2], [1])):
            ids = ids[left]
            lprobs = torch.randn(len(ids), 4, len(dictionary), generator=random).log_softmax(-1)
            scores = torch.randn(len(ids), 4, step + 1, generator=random)
            found += search.step(step, lprobs, scores[..., :step] if step else None, None, ids)
        return found

    assert all(torch.equal(a, b) for a, b in zip(decoded(numbers), decoded([0, 1, 2]), strict=True))

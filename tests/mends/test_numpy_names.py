"""Tests that fairseq finds the names that numpy dropped, and that nobody else does."""

import numpy as np
from fairseq.data import data_utils, language_pair_dataset, token_block_dataset

import fwp_fairseq  # noqa: F401


def test_numpy_stays_as_it_is_for_everybody_else():
    assert "int" not in vars(np) and "float" not in vars(np)
    assert not hasattr(np, "compat") or np.compat.__name__ == "numpy.compat"
    assert data_utils.np.int is int and token_block_dataset.np.compat.long is int


def test_sentences_are_sorted_by_numbers_of_tokens():
    assert language_pair_dataset.np.vectorize(len, otypes=[language_pair_dataset.np.compat.long])(
        ["ab", "c"]
    ).tolist() == [2, 1]
    blocks = token_block_dataset.TokenBlockDataset([[1, 2], [3]], np.array([2, 1]), 2, pad=0, eos=2, break_mode="none")
    assert blocks.sizes.tolist() == [2, 1]

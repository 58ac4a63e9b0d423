"""Compares the synthetic retrieval task with its description in the paper."""

import pytest
import torch

from scripts.experiments.synthetic import task


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def last_value(keys, values, query):
    return [v for k, v in zip(keys.tolist(), values.tolist(), strict=True) if k == query][-1]


@pytest.mark.parametrize("replace", [False, True], ids=["setting 1", "setting 2"])
def test_training_batch(replace):
    S, rows = 7, 50
    batch = task.training_batch(rows, S, replace, generator())
    length = 2 * S if replace else S
    assert batch.keys.shape == batch.values.shape == (rows, length)
    assert batch.queries.shape == batch.answers.shape == (rows, 1)
    for row in range(rows):
        query = batch.queries[row, 0].item()
        assert batch.answers[row, 0].item() == last_value(batch.keys[row], batch.values[row], query)
    if replace:
        assert sorted(batch.keys.unique().tolist()) == sorted(batch.values.unique().tolist()) == list(range(S))
        overwritten = [last_value(k, v, q) != v[k.tolist().index(q)] for k, v, (q,) in zip(*batch[:3], strict=True)]
        assert any(overwritten) and not all(overwritten)
    else:
        for drawn in (batch.keys, batch.values):
            assert torch.equal(drawn.sort(1).values, torch.arange(S).expand(rows, S))
        assert not torch.equal(batch.keys, batch.values)


@pytest.mark.parametrize("S", [6, 250])
@pytest.mark.parametrize("replace", [False, True], ids=["setting 1", "setting 2"])
def test_evaluation_asks_for_every_key_that_came_but_for_200_at_most(replace, S):
    sequence = task.evaluation_sequence(S, replace, generator(3))
    assert sequence.keys.shape == (1, S)
    distinct = sorted(set(sequence.keys[0].tolist()))
    assert (len(distinct) < S) == replace
    assert sequence.queries[0].tolist() == distinct[:200]
    for query, answer in zip(sequence.queries[0].tolist(), sequence.answers[0].tolist(), strict=True):
        assert answer == last_value(sequence.keys[0], sequence.values[0], query)

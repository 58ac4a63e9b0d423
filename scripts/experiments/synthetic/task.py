"""Associative retrieval (Schlag et al. 2021, Sec. 6.1): a model reads key-value pairs, then returns a key's value.

Keys and values are the numbers 0..S-1. Setting 1 draws both without replacement, L = S. Setting 2 draws both with
replacement, L = 2S, so that keys occur again with other values; the last value of a key counts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MOST_QUERIES = 200  # for one sequence in the evaluation, as in the authors' code


class Sequences(NamedTuple):
    """``keys`` and ``values``, (B, L); ``queries`` and ``answers``, the last value of each queried key, (B, T)."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    answers: Tensor

    def to(self, device: str) -> "Sequences":
        return Sequences(*(x.to(device) for x in self))


def _draw(rows: int, length: int, S: int, replace: bool, generator: torch.Generator) -> Tensor:
    if replace:
        return torch.randint(S, (rows, length), generator=generator)
    return torch.rand(rows, S, generator=generator).argsort(1)[:, :length]


def _answers(keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
    hits = keys[:, None] == queries[..., None]
    position = torch.arange(keys.shape[1]).expand_as(hits).masked_fill(~hits, -1).amax(-1)
    return values.gather(1, position)


def training_batch(rows: int, S: int, replace: bool, generator: torch.Generator) -> Sequences:
    """Draws sequences with one query each: the key at a uniformly drawn position, so frequent keys are more likely."""
    length = 2 * S if replace else S
    keys, values = (_draw(rows, length, S, replace, generator) for _ in range(2))
    queries = keys.gather(1, torch.randint(length, (rows, 1), generator=generator))
    return Sequences(keys, values, queries, _answers(keys, values, queries))


def evaluation_sequence(S: int, replace: bool, generator: torch.Generator) -> Sequences:
    """Draws one sequence with a query for each distinct key in it, in ascending order, at most 200 of them.

    Its length is S in both settings, because the authors' code evaluates setting 2 on half of the training length.
    """
    keys, values = (_draw(1, S, S, replace, generator) for _ in range(2))
    queries = keys.unique()[None, :MOST_QUERIES]
    return Sequences(keys, values, queries, _answers(keys, values, queries))

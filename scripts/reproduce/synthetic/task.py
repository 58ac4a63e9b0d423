"""Associative retrieval (Schlag et al. 2021, Sec. 6.1): key-value pairs go by, then the value of one key is asked for.

Keys and values are the numbers 0..S-1. Setting 1 draws both without replacement, L = S; setting 2 draws both with
replacement, L = 2S, so a key comes back with another value and the last one counts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MOST_QUERIES = 200  # of one sequence in the evaluation, as in the authors' code


class Sequences(NamedTuple):
    """``keys``, ``values`` (B, L); ``queries``, ``answers`` (B, T): what each queried key was last written with."""

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
    """One query a sequence: the key at a position drawn uniformly, so a key that came often is asked for often."""
    length = 2 * S if replace else S
    keys, values = (_draw(rows, length, S, replace, generator) for _ in range(2))
    queries = keys.gather(1, torch.randint(length, (rows, 1), generator=generator))
    return Sequences(keys, values, queries, _answers(keys, values, queries))


def evaluation_sequence(S: int, replace: bool, generator: torch.Generator) -> Sequences:
    """One sequence and a query for each distinct key in it, in ascending order, the first 200 of them.

    Length S in both settings: the authors' code scores setting 2 on half the length that it trains on.
    """
    keys, values = (_draw(1, S, S, replace, generator) for _ in range(2))
    queries = keys.unique()[None, :MOST_QUERIES]
    return Sequences(keys, values, queries, _answers(keys, values, queries))

"""Normalisers that the operator does not have: of finished features phi (B, L, H, d_dot), before it.

The operator is then given the results as they are. Cost: d_dot numbers a position in memory, and again for the backward
pass, which compiled kernels avoid where they compute features themselves.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..ops.call import divide

_EPS = 1e-6


def over_features(phi: Tensor) -> Tensor:
    """phi / (sum over the features of a position + eps)."""
    return divide(phi, phi.sum(-1, keepdim=True) + _EPS)


def over_positions(phi: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """phi / (sum of a feature over the positions + eps); pads, True in the (B, L) mask, count as 0."""
    if key_padding_mask is not None:
        phi = phi.masked_fill(key_padding_mask[:, :, None, None], 0)
    return divide(phi, phi.sum(1, keepdim=True) + _EPS)


def to_length_one(phi: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """phi / (|phi| + eps), position by position."""
    return divide(phi, phi.norm(dim=-1, keepdim=True) + _EPS)


class FeatureNormalizer(NamedTuple):
    """What is done to the features of queries, and of keys, whose padding matters to some."""

    queries: Callable[[Tensor], Tensor]
    keys: Callable[[Tensor, Tensor | None], Tensor]


FEATURE_NORMALIZERS = {
    "positions": FeatureNormalizer(over_features, over_positions),
    "l2": FeatureNormalizer(to_length_one, to_length_one),
}

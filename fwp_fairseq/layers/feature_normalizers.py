"""Normalisers that the operator does not have: of the features phi of (B, L, H, d_key), before it.

The operator is then given the results as they are. Cost: d_dot numbers a position in memory, and again for the backward
pass, which compiled kernels avoid where they compute features themselves.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..feature_maps import FeatureMap
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


def features(feature_map: FeatureMap, x: Tensor) -> Tensor:
    """phi of x (B, L, H, d_key), not normalised."""
    return feature_map(x.transpose(1, 2)).transpose(1, 2)


def _of_length_one(feature_map: FeatureMap, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    return feature_map.of_length_one(x.transpose(1, 2), _EPS).transpose(1, 2)


class FeatureNormalizer(NamedTuple):
    """The normalised features (B, L, H, d_dot) of queries, and of keys, whose padding matters to some."""

    queries: Callable[[FeatureMap, Tensor], Tensor]
    keys: Callable[[FeatureMap, Tensor, Tensor | None], Tensor]


FEATURE_NORMALIZERS = {
    "positions": FeatureNormalizer(
        lambda feature_map, q: over_features(features(feature_map, q)),
        lambda feature_map, k, key_padding_mask: over_positions(features(feature_map, k), key_padding_mask),
    ),
    "l2": FeatureNormalizer(_of_length_one, _of_length_one),
}

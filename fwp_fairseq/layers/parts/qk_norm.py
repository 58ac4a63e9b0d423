"""L2 norm of queries and keys, with a learned scale."""

import math

import torch
from torch import Tensor, nn

from ...feature_maps import unit_rows
from ...numerics import state_type, without_autocast
from ...ops.call import EPS
from .part import Part


class QueryKeyNorm(Part):
    """Computes length scale_h x / (|x| + eps) for the queries and keys of head h; scale_h is learned and starts at 1.

    phi(q).phi(k) then depends only on the directions of q and k, and scale_h determines how sharply. With FAVOR+ it is
    exp(scale_h^2 length^2 cos(q, k) / sqrt(d_key)). The variance of its estimate from random features grows with
    exp(|q' + k'|^2), q' = q d_key^-1/4 (Luo et al. 2021, "Stable, Fast and Accurate: Kernelized Attention with Relative
    Positional Encoding", Lemma 2); without the norm, queries and keys keep growing during training.

    Args:
        heads: number of scales.
        d_key: width of a head.
        variance: mean square of an entry of queries and keys at initialisation. ``length`` = sqrt(variance d_key) is
            the root mean square of their lengths. The cosine of two random directions has variance 1 / d_key, so the
            exponent length^2 cos / sqrt(d_key) has variance ``variance``^2, as q.k / sqrt(d_key) does in softmax
            attention at initialisation: the kernel starts as sharp as softmax attention.

    It is computed in float32 or wider; the result has the dtype of x. Cost: a few passes over x.
    """

    option, place = "qk_norm", "queries and keys"

    def __init__(self, heads: int, d_key: int, variance: float):
        super().__init__(heads, d_key, variance)
        self.length = math.sqrt(variance * d_key)
        self.scale = nn.Parameter(torch.ones(heads))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises x (..., heads, d_key)."""
        with without_autocast(x):
            wide = x.to(state_type(x.dtype))
            scale = self.length * self.scale.to(wide.dtype)[:, None]
            return (unit_rows.to_length_one(wide, EPS) * scale).to(x.dtype)

    def extra_repr(self) -> str:
        return f"length={self.length:.4g}"

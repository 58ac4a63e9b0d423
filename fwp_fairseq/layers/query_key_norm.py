"""L2 norm of queries and keys, with a learned scale."""

import math

import torch
from torch import Tensor, nn

from ..feature_maps import unit_rows
from ..numerics import state_type, without_autocast
from ..ops.call import EPS


class QueryKeyNorm(nn.Module):
    """Computes s_h L x / (|x| + eps) for the queries and keys of head h.

    The scale s_h is learned and starts at 1. The constant L = sqrt(variance d_key) is the root mean square length of
    queries and keys at initialisation.

    phi(q).phi(k) then depends only on the directions of q and k; s_h determines how sharply it distinguishes them. With
    FAVOR+ the product is exp(s_h^2 L^2 cos(q, k) / sqrt(d_key)). This kernel starts as sharp as softmax attention: the
    cosine of two random directions has variance 1 / d_key, so the exponent starts with variance ``variance``^2, as q.k
    / sqrt(d_key) does in softmax attention.

    Without the norm, queries and keys keep growing during training, and the variance of the kernel's estimate from
    random features grows with exp(|q' + k'|^2), q' = q d_key^-1/4 (Luo et al. 2021, "Stable, Fast and Accurate:
    Kernelized Attention with Relative Positional Encoding", Lemma 2).

    Args:
        heads: number of scales.
        d_key: width of a head.
        variance: mean square of an entry of queries and keys at initialisation.

    The norm is computed in float32 or wider; the result has the dtype of x. Cost: a few passes over x.
    """

    def __init__(self, heads: int, d_key: int, variance: float):
        super().__init__()
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

"""phi(x) = [softmax(x), softmax(-x)], the part of Hedgehog after W x.

Operators whose kernels know the map compute it themselves. Elsewhere it is a compiled function of rows, in float32 and
on the CPU in float64: one pass over x, where PyTorch takes four, and only phi is kept for the backward,
dx = phi+ (dphi+ - phi+.dphi+) - phi- (dphi- - phi-.dphi-). In other types PyTorch computes it.
"""

import torch
from torch import Tensor

from .feature_map import FeatureMap
from .row_functions import RowFunction, rows_like


class SoftmaxPair(FeatureMap):
    """phi(x) = [softmax(x), softmax(-x)]; d_dot = 2 d_key.

    This is Hedgehog (Zhang et al. 2024) without its matrix, as operators compute it. It has no flag.
    """

    name = "softmax_pair"
    non_negative = True
    kernel = "softmax_pair"

    def __init__(self, d_key: int):
        super().__init__(d_key, 2 * d_key)

    def features(self, x: Tensor) -> Tensor:
        return softmax_pair(x)


def _differentiate(ctx, grad_f):
    (f,) = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return torch.ops.fwp.softmax_pair_backward(grad_f, f)
    pairs = zip(f.chunk(2, -1), grad_f.chunk(2, -1), strict=True)
    up, down = (x * (dx - (x * dx).sum(-1, keepdim=True)) for x, dx in pairs)
    return up - down  # which has derivatives of its own


# From x, (..., n), to features of its type, (..., 2 n).
softmax_pair = RowFunction(
    "softmax_pair",
    lambda x: torch.cat([x.softmax(-1), (-x).softmax(-1)], dim=-1),
    lambda y: rows_like(y, 2 * y.shape[-1]),
    lambda grad_f, f: rows_like(f, f.shape[-1] // 2),
    lambda ctx, inputs, output: ctx.save_for_backward(output),
    _differentiate,
)

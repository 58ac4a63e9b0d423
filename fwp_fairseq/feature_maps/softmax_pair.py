"""phi(x) = [softmax(x), softmax(-x)], the part of Hedgehog after W x.

Operators compute this map themselves if their kernels support it. Elsewhere it is a function of rows, compiled in
float32 and, on the CPU, in float64. It takes one pass over x (PyTorch takes four) and keeps only phi for the backward
pass, dx = phi+ (dphi+ - phi+.dphi+) - phi- (dphi- - phi-.dphi-). For other dtypes, PyTorch computes it.
"""

import torch
from torch import Tensor

from .feature_map import FeatureMap
from .row_functions import RowFunction, rows_like


class SoftmaxPair(FeatureMap):
    """phi(x) = [softmax(x), softmax(-x)]; d_dot = 2 d_key.

    This is the part of Hedgehog (Zhang et al. 2024) that operators compute. It has no flag.
    """

    name = "softmax_pair"
    non_negative = True
    kernel = "softmax_pair"
    of_whole_rows = True

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
    return up - down  # which can be differentiated again


# Maps x (..., n) to features (..., 2 n) of the same dtype.
softmax_pair = RowFunction(
    "softmax_pair",
    lambda x: torch.cat([x.softmax(-1), (-x).softmax(-1)], dim=-1),
    lambda y: rows_like(y, 2 * y.shape[-1]),
    lambda grad_f, f: rows_like(f, f.shape[-1] // 2),
    lambda ctx, inputs, output: ctx.save_for_backward(output),
    _differentiate,
)

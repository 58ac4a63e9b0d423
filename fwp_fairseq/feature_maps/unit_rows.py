"""Divides rows (vectors along the last dimension) by their length or by their root mean square.

Both functions are compiled in float32 and, on the CPU, in float64. They take one pass forward and one backward, where
PyTorch takes a dozen. For other dtypes, PyTorch computes them. The kernels are in csrc/cpu/unit_rows.h and
csrc/cuda/kernels/row_functions.cuh.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .row_functions import RowFunction, rows_like


def _function(name: str, in_pytorch: Callable[[Tensor, float], Tensor]) -> RowFunction:
    def save(ctx, inputs, output) -> None:
        x, ctx.eps = inputs
        ctx.save_for_backward(x)

    def differentiate(ctx, grad_y):
        (x,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return getattr(torch.ops.fwp, f"{name}_backward")(grad_y, x, ctx.eps), None
        # This can be differentiated again.
        return *torch.autograd.grad(in_pytorch(x, ctx.eps), x, grad_y, create_graph=True), None

    return RowFunction(
        name, in_pytorch, lambda x, eps: rows_like(x, x.shape[-1]), lambda grad_y, x, eps: rows_like(x, x.shape[-1]),
        save, differentiate,
    )  # fmt: skip


def lengths(x: Tensor) -> Tensor:
    """Computes |x| of rows, (..., 1); at 0 all its derivatives are 0 (autograd's second derivative would be NaN)."""
    empty = x.detach().norm(dim=-1, keepdim=True) == 0
    return x.masked_fill(empty, 1).norm(dim=-1, keepdim=True).masked_fill(empty, 0)


def elu_plus_one(x: Tensor) -> Tensor:
    """Computes x + 1 for x > 0 and exp(x) elsewhere; ``F.elu(x) + 1`` would round exp(x) to multiples of 6e-8."""
    return torch.where(x > 0, x + 1, x.masked_fill(x > 0, 0).exp())


def _divided(x: Tensor, eps: float) -> Tensor:
    return x / (lengths(x) + eps)


# x / (|x| + eps)
to_length_one = _function("to_length_one", _divided)
# phi / (|phi| + eps) of phi = elu(x) + 1
elu_to_length_one = _function("elu_to_length_one", lambda x, eps: _divided(elu_plus_one(x), eps))
# x / sqrt(mean of x^2 + eps)
to_rms_one = _function("to_rms_one", lambda x, eps: x * (x.square().mean(-1, keepdim=True) + eps).rsqrt())

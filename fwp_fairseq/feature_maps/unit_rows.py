"""Divides rows, the vectors of the last dimension, by their length or by their root mean square.

They are compiled, in float32 and on the CPU in float64: one pass there and one back, where PyTorch takes a dozen.
Elsewhere PyTorch computes them.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _extension, _transforms
from .row_functions import rows_like, serves_rows


def to_length_one(x: Tensor, eps: float) -> Tensor:
    """x / (|x| + eps) of rows x."""
    return _apply("to_length_one", x, eps)


def elu_to_length_one(x: Tensor, eps: float) -> Tensor:
    """phi / (|phi| + eps) of phi = elu(x) + 1."""
    return _apply("elu_to_length_one", x, eps)


def to_rms_one(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean of x^2 + eps) of rows x."""
    return _apply("to_rms_one", x, eps)


def _to_length_one(x: Tensor, eps: float) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + eps)


_IN_PYTORCH: dict[str, Callable[[Tensor, float], Tensor]] = {
    "to_length_one": _to_length_one,
    "elu_to_length_one": lambda x, eps: _to_length_one(F.elu(x) + 1, eps),
    "to_rms_one": lambda x, eps: x * (x.square().mean(-1, keepdim=True) + eps).rsqrt(),
}


def _apply(name: str, x: Tensor, eps: float) -> Tensor:
    if _COMPILED and serves_rows(x):
        return getattr(torch.ops.fwp, name)(x, eps)
    return _IN_PYTORCH[name](x, eps)


def _register(name: str) -> None:
    backward = getattr(torch.ops.fwp, f"{name}_backward")

    def save(ctx, inputs, output) -> None:
        x, ctx.eps = inputs
        ctx.save_for_backward(x)

    def differentiate(ctx, grad_y):
        _transforms.refuse_tangents(f"fwp::{name}_backward", grad_y)
        (x,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return backward(grad_y, x, ctx.eps), None
        # With derivatives of its own.
        return *torch.autograd.grad(_IN_PYTORCH[name](x, ctx.eps), x, grad_y, create_graph=True), None

    torch.library.register_fake(f"fwp::{name}", lambda x, eps: rows_like(x, x.shape[-1]))
    torch.library.register_fake(f"fwp::{name}_backward", lambda grad_y, x, eps: rows_like(x, x.shape[-1]))
    torch.library.register_autograd(f"fwp::{name}", differentiate, setup_context=save)


_COMPILED = _extension.status().cpu and hasattr(torch.ops.fwp, "elu_to_length_one")
if _COMPILED:
    for _name in _IN_PYTORCH:
        _register(_name)

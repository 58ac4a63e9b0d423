"""Derivatives and transforms that no compiled operator has: forward mode, and those of ``torch.func``."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def reasons() -> list[str]:
    """Why a compiled operator cannot serve a call made here and now; empty when it can.

    Whether a tensor carries a tangent is not asked: a graph compiled while a level is open serves tensors with and
    without one. Cost: two look-ups, and nothing in a compiled graph.
    """
    if torch._C._are_functorch_transforms_active():
        return ["the compiled library knows no transform of torch.func (grad, jvp, vmap and what is made of them)"]
    if forward_ad._current_level >= 0:
        return ["the compiled library has no forward-mode derivative (a level of torch.autograd.forward_ad is open)"]
    return []


def refuse_tangents(operator: str, *tensors: Tensor | None) -> None:
    """Raises NotImplementedError where one of them carries a forward-mode derivative, which would be lost."""
    if forward_ad._current_level < 0:
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            f"{operator} has no forward-mode derivative; the backends chunked and reference have one"
        )

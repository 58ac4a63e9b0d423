"""Detects forward-mode derivatives and transforms of ``torch.func``, which no compiled operator supports."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def unsupported_reasons() -> list[str]:
    """Why a compiled operator cannot serve a call under the transforms that are active now; empty when it can.

    An open level of forward mode is reason enough, whether or not a tensor carries a tangent, because a graph compiled
    under it may be called with either. Cost: two look-ups, and nothing in a compiled graph.
    """
    if torch._C._are_functorch_transforms_active():
        return ["the compiled library supports no transform of torch.func (grad, jvp, vmap and those built on them)"]
    if forward_ad._current_level >= 0:
        return ["the compiled library has no forward-mode derivative (a level of torch.autograd.forward_ad is open)"]
    return []


def refuse_tangents(operator: str, *tensors: Tensor | None) -> None:
    """Raises NotImplementedError if a tensor carries a forward-mode derivative, which the operator would lose."""
    if forward_ad._current_level < 0:
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            f"{operator} has no forward-mode derivative; the backends chunked and reference have one"
        )

"""Moves padding behind the positions of a row, so that it does not stand between them."""

import torch
from torch import Tensor

from .numerics import is_known


def may_be_read(pads: Tensor) -> bool:
    """Returns False if reading values of ``pads`` would wait for a GPU or break a traced graph."""
    return pads.device.type == "cpu" and is_known(pads)


def order_behind(pads: Tensor | None) -> Tensor | None:
    """Returns the order (B, L) of positions in which those with ``pads`` (B, L) come last.

    None if they already do, which is checked only if ``pads`` may be read.
    """
    if pads is None or pads.shape[1] == 1:
        return None
    if may_be_read(pads) and not (pads[:, :-1] & ~pads[:, 1:]).any():
        return None
    return pads.to(torch.uint8).argsort(dim=1, stable=True)


def ordered(x: Tensor, order: Tensor) -> Tensor:
    """Arranges the positions of each row of x (B, L, ...) by the indices ``order`` (B, L')."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (order + first).flatten()).unflatten(0, order.shape)

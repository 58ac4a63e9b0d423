"""States: named tuples of tensors that one call hands to the next, the rows of a batch first.

Every one of them can be detached, reordered, saved with ``torch.save``, and loaded with ``weights_only``.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

# A named tuple of tensors, of which some may be None.
State = tuple
S = TypeVar("S", bound=State)


def changed(state: S, change: Callable[[Tensor], Tensor]) -> S:
    """The state with ``change`` of every tensor."""
    return type(state)(*(None if x is None else change(x) for x in state))


def detach(state: S) -> S:
    """The same state, through which no gradient flows back."""
    return changed(state, Tensor.detach)


def select(state: S, rows: Tensor) -> S:
    """The state of these rows of the batch, (B',) int64, in this order; rows can be left out and repeated."""
    return changed(state, lambda x: x.index_select(0, rows))


def registered(cls: Any) -> Any:
    """Declares a named tuple to be a state: adds ``detach`` and ``select``, and lets ``torch.load`` open it."""
    cls.detach, cls.select = detach, select
    torch.serialization.add_safe_globals([cls])
    return cls

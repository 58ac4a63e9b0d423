"""States: named tuples of tensors that one call hands to the next, the rows of a batch first.

Every one of them can be detached, reordered, saved with ``torch.save``, and loaded with ``weights_only``.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree

from ..numerics import state_type

# A named tuple of tensors, of which some may be None.
State = tuple
S = TypeVar("S", bound=State)


def changed(state: S, change: Callable[[Tensor], Tensor]) -> S:
    """Returns the state with ``change`` applied to each of its tensors."""
    return type(state)(*(None if x is None else change(x) for x in state))


def detach(state: S) -> S:
    """Returns the same state, through which no gradient flows back."""
    return changed(state, Tensor.detach)


def select(state: S, rows: Tensor) -> S:
    """Selects the state of these rows of the batch, (B',) int64, in this order; rows can be left out and repeated."""
    return changed(state, lambda x: x.index_select(0, rows))


def registered(cls: Any) -> Any:
    """Declares a named tuple to be a state: adds ``detach`` and ``select``, and lets ``torch`` load and export it."""
    cls.detach, cls.select = detach, select
    _pytree._register_namedtuple(cls, serialized_type_name=f"{cls.__module__}.{cls.__name__}")
    torch.serialization.add_safe_globals([cls])
    return cls


def zeros(shapes: S, rows: int, like: Tensor) -> S:
    """Returns a state of zeros, for inputs of the type and device of ``like``; ``shapes`` are as in :func:`checked`."""
    kind = state_type(like.dtype)
    return type(shapes)(*(None if shape is None else like.new_zeros(rows, *shape, dtype=kind) for shape in shapes))


def checked(state: Any, shapes: S, rows: int) -> S:
    """Returns the state, which may be a plain tuple of its tensors.

    Args:
        state: the state to check; its tensors must have ``rows`` rows.
        shapes: a state with the shape of each tensor without its rows; None for a tensor that is absent.

    Raises:
        ValueError: the state is of another kind, or a tensor has another shape or type; the message names what was
            expected and what came.
    """
    cls, kind = type(shapes), type(shapes).__name__
    expected = {name: shape and (rows, *shape) for name, shape in zip(cls._fields, shapes, strict=True)}
    own = isinstance(state, cls) or not hasattr(state, "_fields")
    if not isinstance(state, tuple | list) or len(state) != len(shapes) or not own:
        raise ValueError(f"state is a {type(state).__name__}, expected {kind} of shapes {expected}")
    for (name, shape), x in zip(expected.items(), state, strict=True):
        actual = tuple(x.shape) if isinstance(x, Tensor) else x
        if shape is not None and actual != shape:
            raise ValueError(f"state.{name} is {actual}, expected shape {shape} ({kind} of {rows} rows)")
        if shape is not None and not x.is_floating_point():
            raise ValueError(f"state.{name} is of type {x.dtype}, expected a floating point type")
    return cls(*(None if shape is None else x for x, shape in zip(state, shapes, strict=True)))

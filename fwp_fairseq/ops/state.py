"""States: named tuples of tensors that one call passes to the next; the first dimension is the batch.

All states can be detached, reordered, saved with ``torch.save`` and loaded with ``weights_only``.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree

from ..numerics import state_type

# A named tuple of tensors, some of which may be None.
State = tuple
S = TypeVar("S", bound=State)


def changed(state: S, change: Callable[[Tensor], Tensor]) -> S:
    """Returns the state with ``change`` applied to each of its tensors."""
    return type(state)(*(None if x is None else change(x) for x in state))


def detach(state: S) -> S:
    """Returns the same state without its gradient."""
    return changed(state, Tensor.detach)


def select(state: S, rows: Tensor) -> S:
    """Selects rows (B',) int64 of the batch, in this order; rows can be left out and repeated."""
    return changed(state, lambda x: x.index_select(0, rows))


def registered(cls: Any) -> Any:
    """Makes a named tuple a state: adds ``detach`` and ``select``, and lets ``torch`` load and export it."""
    cls.detach, cls.select = detach, select
    _pytree._register_namedtuple(cls, serialized_type_name=f"{cls.__module__}.{cls.__name__}")
    torch.serialization.add_safe_globals([cls])
    return cls


def zeros(shapes: S, rows: int, like: Tensor) -> S:
    """Returns a state of zeros for inputs like ``like`` (dtype and device); ``shapes`` is as in :func:`checked`."""
    dtype = state_type(like.dtype)
    return type(shapes)(*(None if shape is None else like.new_zeros(rows, *shape, dtype=dtype) for shape in shapes))


def checked(state: Any, shapes: S, like: Tensor, masks: tuple[str, ...] = ()) -> S:
    """Checks a state, which may be a plain tuple of its tensors, and returns it as a named tuple.

    Args:
        state: the state to check.
        shapes: a state with the shape of each tensor without the batch dimension; None for an absent tensor.
        like: the input (B, ...); the state must have its device and as many rows.
        masks: the names of tensors of type bool; all others hold floating point numbers.

    Raises:
        ValueError: the state is of another kind, or a tensor has a wrong shape, dtype or device; the message gives the
            expected and the actual value.
    """
    cls, kind, rows = type(shapes), type(shapes).__name__, like.shape[0]
    expected = {name: shape and (rows, *shape) for name, shape in zip(cls._fields, shapes, strict=True)}
    own = isinstance(state, cls) or not hasattr(state, "_fields")
    if not isinstance(state, tuple | list) or len(state) != len(shapes) or not own:
        raise ValueError(f"state is a {type(state).__name__}, expected {kind} of shapes {expected}")
    for (name, shape), x in zip(expected.items(), state, strict=True):
        actual = tuple(x.shape) if isinstance(x, Tensor) else x
        if shape is not None and actual != shape:
            raise ValueError(f"state.{name} is {actual}, expected shape {shape} ({kind} of {rows} rows)")
        if shape is not None and not (x.dtype == torch.bool if name in masks else x.is_floating_point()):
            wanted = "torch.bool" if name in masks else "a floating point type"
            raise ValueError(f"state.{name} is of type {x.dtype}, expected {wanted}")
        if shape is not None and x.device != like.device:
            raise ValueError(f"state.{name} is on {x.device}, expected {like.device}, where the input is")
    return cls(*(None if shape is None else x for x, shape in zip(state, shapes, strict=True)))

"""A guard under which nothing reads a value of a tensor on the host, which waits for a GPU and cannot be captured."""

from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.onnx.operators
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators that read a value, and methods that do so without one.
_OPERATORS = {
    "_local_scalar_dense",
    "equal",
    "is_nonzero",
    "nonzero",
    "_unique2",
    "unique_consecutive",
    "masked_select",
}
_METHODS = ("tolist", "numpy", "cpu")


def _tensors(tree) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


class _NoReads(TorchDispatchMode):
    """Lets pass what was computed from shapes alone, which is on the host anyway."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name, inputs = operator._schema.name.partition("::")[2], _tensors((args, kwargs))
        of_shapes = inputs and all(hasattr(x, "of_shapes") for x in inputs)
        counts_true = name.startswith("index") and any(x.dtype == torch.bool for x in inputs[1:])
        assert of_shapes or not (counts_true or name in _OPERATORS), f"{operator} reads a value"
        out = operator(*args, **(kwargs or {}))
        for x in _tensors(out) if of_shapes else ():
            x.of_shapes = True
        if "copy" in name:  # numbers alone go to an operator without a copy
            devices = {x.device.type for x in [*inputs, *_tensors(out)] if x.dim()}
            assert len(devices) < 2, f"{operator} reads a value, or writes it, on another device"
        return out


@contextmanager
def no_reads():
    """Raises AssertionError where a value is read or copied between devices; on a GPU RuntimeError at other waits."""

    def refuse(*_):
        raise AssertionError("a method reads a value")

    def shape_as_tensor(x):
        found = torch.tensor(x.shape)
        found.of_shapes = True
        return found

    on_a_gpu = torch.version.cuda is not None and torch.cuda.is_available()
    methods = patch.multiple(torch.Tensor, **dict.fromkeys(_METHODS, refuse))
    with methods, patch.object(torch.onnx.operators, "shape_as_tensor", shape_as_tensor), _NoReads():
        if on_a_gpu:
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if on_a_gpu:
                torch.cuda.set_sync_debug_mode("default")

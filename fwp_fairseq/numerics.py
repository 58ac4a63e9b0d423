"""The dtypes used inside the attention of half-precision models, and a check for tensors without values."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_UNCHANGED = nullcontext()
_PLAIN = Tensor.__torch_dispatch__


def state_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of features, sums and states: float32 for half-precision inputs, else that of the inputs."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(like: Tensor) -> AbstractContextManager:
    """Returns a context in which autocast does not change the dtype of tensors on the device of ``like``."""
    device = like.device.type
    # Entering ``torch.autocast`` takes as long as a small kernel, even if there is nothing to turn off.
    active = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else _UNCHANGED


def is_known(x: Tensor) -> bool:
    """Returns False if the values of a tensor cannot be read: it has none, or a graph is being traced."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or torch.jit.is_tracing()
    return not (traced or x.is_meta or torch._C._len_torch_dispatch_stack() or type(x).__torch_dispatch__ is not _PLAIN)

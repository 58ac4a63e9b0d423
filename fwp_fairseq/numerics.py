"""Types of numbers inside the attention of models in half precision, and tensors without numbers."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_UNCHANGED = nullcontext()
_PLAIN = Tensor.__torch_dispatch__


def state_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type of features, sums and states: float32 for inputs in half precision, else that of the inputs."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(like: Tensor) -> AbstractContextManager:
    """Returns a context in which autocast changes no type of tensors on the device of ``like``."""
    device = like.device.type
    # Entering ``torch.autocast`` takes as long as a small kernel, also where there is nothing to turn off.
    active = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else _UNCHANGED


def is_known(x: Tensor) -> bool:
    """Returns False where nobody may look at the numbers of a tensor: it has none, or a graph is traced with them."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or torch.jit.is_tracing()
    return not (traced or x.is_meta or torch._C._len_torch_dispatch_stack() or type(x).__torch_dispatch__ is not _PLAIN)

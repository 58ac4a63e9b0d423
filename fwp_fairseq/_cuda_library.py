"""Asks the CUDA library, where it is loaded, what it has and what it refuses. Its answers never change in a process.

A module named _cuda would be hidden by the library, _cuda.abi3.so, which Python would import in its place.
"""

import torch

from . import _self_check
from ._constant import constant


@constant
def has_kernel(operator: str) -> bool:
    """Whether it computes this operator, which the CPU library defines."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"fwp::{operator}", "CUDA")


@constant
def refusal(operator: str, *sizes) -> str:
    """Why a device cannot serve a call, or an empty text; ``operator`` is the one to ask, the device's number is first.

    A device that could is checked, once: see :mod:`._self_check`.
    """
    return getattr(torch.ops.fwp, operator)(*sizes) or _self_check.failure(sizes[0])


def index(device: torch.device) -> int:
    """The number of the device, which is the first argument of such an operator."""
    return torch.cuda.current_device() if device.index is None else device.index

"""What the compiled functions of rows, the vectors of a tensor's last dimension, have in common on Python's side."""

import torch
from torch import Tensor

from .. import _cuda_library, _transforms


def serves_rows(x: Tensor) -> bool:
    """Whether the compiled functions of rows can be given x, now."""
    if x.shape[-1] == 0 or _transforms.unsupported_reasons():
        return False
    if x.device.type == "cuda":
        return x.dtype == torch.float32 and _cuda_serves(x.device)
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def _cuda_serves(device: torch.device) -> bool:
    if not _cuda_library.has_kernel("softmax_pair"):  # no CUDA library, or one that is older than these functions
        return False
    if not torch.cuda.is_available():
        return True
    return not _cuda_library.refusal("cuda_row_function_refusal", _cuda_library.index(device))


def rows_like(x: Tensor, width: int) -> Tensor:
    """An empty tensor of x's shape but this width, with rows in the order that x has in memory."""
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    sizes = [x.shape[dim] for dim in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.new_empty(*sizes, width).permute(*back, -1)

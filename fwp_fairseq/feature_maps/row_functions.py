"""Functions of rows, the vectors of a tensor's last dimension: compiled where they can be, else by PyTorch."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import _cuda_library
from .._operator import Kernel


class RowFunction(Kernel):
    """A compiled function of rows, in float32 and on the CPU in float64; ``in_pytorch`` computes it elsewhere."""

    def __init__(self, name: str, in_pytorch: Callable, fake, fake_backward, save, differentiate):
        super().__init__(name, fake, fake_backward, save, differentiate, others=None)
        self.in_pytorch = in_pytorch

    def serves(self, x: Tensor) -> bool:
        """Whether the compiled function can be given x, now."""
        if x.shape[-1] == 0 or self.unsupported_reasons(x):
            return False
        return x.device.type == "cpu" or (x.dtype == torch.float32 and _cuda_serves(x.device))

    def __call__(self, x: Tensor, *numbers: float) -> Tensor:
        if self.serves(x):
            return getattr(torch.ops.fwp, self.name)(x, *numbers)
        return self.in_pytorch(x, *numbers)


def _cuda_serves(device: torch.device) -> bool:
    if not _cuda_library.has_kernel("softmax_pair"):  # no CUDA library
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

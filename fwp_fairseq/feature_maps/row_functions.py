"""Functions of rows, the vectors of a tensor's last dimension: compiled where they can be, else by PyTorch."""

from collections.abc import Callable

import torch
from torch import Tensor

from .._operator import Kernel


class RowFunction(Kernel):
    """A compiled function of rows, in float32 and on the CPU in float64; ``in_pytorch`` computes it elsewhere."""

    def __init__(self, name: str, in_pytorch: Callable, fake, fake_backward, save, differentiate):
        super().__init__(
            name, fake, fake_backward, save, differentiate, cuda_types=(torch.float32,),
            cuda_refusal="cuda_row_function_refusal", others=None,
        )  # fmt: skip
        self.in_pytorch = in_pytorch

    def serves(self, x: Tensor) -> bool:
        """Returns True if the compiled function can be called with x under the active transforms."""
        return x.shape[-1] != 0 and not self.unsupported_reasons(x) and not self.refused(x)

    def __call__(self, x: Tensor, *numbers: float) -> Tensor:
        if self.serves(x):
            return getattr(torch.ops.fwp, self.name)(x, *numbers)
        return self.in_pytorch(x, *numbers)


def rows_like(x: Tensor, width: int) -> Tensor:
    """An empty tensor of x's shape but this width, with rows in the order that x has in memory."""
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    sizes = [x.shape[dim] for dim in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.new_empty(*sizes, width).permute(*back, -1)

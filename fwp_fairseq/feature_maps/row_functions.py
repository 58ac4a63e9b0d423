"""Functions of rows (vectors along the last dimension of a tensor), compiled if possible, otherwise in PyTorch."""

from collections.abc import Callable

import torch
from torch import Tensor

from .._operator import InPyTorch, Kernel, Operator


class RowFunction(Operator):
    """A function of rows, compiled in float32 and, on the CPU, in float64; otherwise ``in_pytorch`` computes it."""

    def __init__(self, name: str, in_pytorch: Callable, fake, fake_backward, save, differentiate):
        kernel = Kernel(
            name, fake, fake_backward, save, differentiate, cuda_types=(torch.float32,),
            cuda_refusal="cuda_row_function_refusal", sizes=lambda *arguments: (), second_derivatives_in=None,
        )  # fmt: skip
        super().__init__(f"the rows of {name}", native=kernel, chunked=InPyTorch(in_pytorch))
        self.in_pytorch = in_pytorch

    def __call__(self, x: Tensor, *numbers: float) -> Tensor:
        return super().__call__("auto" if x.shape[-1] else "chunked", x, *numbers)


def rows_like(x: Tensor, width: int) -> Tensor:
    """Returns an empty tensor with x's shape except for its width, and with rows in the memory order of x."""
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    sizes = [x.shape[dim] for dim in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.new_empty(*sizes, width).permute(*back, -1)

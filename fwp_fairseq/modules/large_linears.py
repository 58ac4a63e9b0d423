"""Replaces the large linear layers of a model for decoding on a CPU; the base of int8.py and packed.py."""

from collections.abc import Callable

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from .softmax_self_attention import SoftmaxSelfAttention

# With fewer weights, int8 or prepacked products cost more than they save.
SMALLEST = 2**18


class LargeLinear(nn.Module):
    """A linear layer whose weights are stored in a form for decoding only; it can be neither saved nor copied."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Computes y = W x + b. Raises RuntimeError under autograd."""
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("this linear layer is prepared for decoding; expected a call under torch.no_grad()")
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def __getstate__(self) -> dict:
        raise NotImplementedError("the weights are in a form for decoding: copy the model before it is prepared")

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        raise NotImplementedError(f"{prefix}weight is in a form for decoding: save the model before it is prepared")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def replace_(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> list[str]:
    """Replaces linear layers with :data:`SMALLEST` or more weights by ``make(linear)``; returns their names."""
    modules = dict(model.named_modules())
    # Softmax attention of the encoder stays as it is: fairseq's module reads the weights in each call, which would
    # unpack them each time. `SoftmaxSelfAttention`, which replaces that module, is treated alike.
    softmax = [
        name for name, module in modules.items() if isinstance(module, MultiheadAttention | SoftmaxSelfAttention)
    ]
    read = tuple(f"{name}." for name in softmax if name.startswith("encoder."))
    names = [
        name
        for name, module in modules.items()
        if type(module) is nn.Linear and module.weight.numel() >= SMALLEST and not name.startswith(read)
    ]
    for name in names:  # one by one, so that only one layer's weights are in memory twice
        parent, _, child = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, child, make(getattr(owner, child)))
    return names

"""Which linear layers of a model another kind takes the place of, for decoding on a CPU."""

from collections.abc import Callable

from torch import nn

# Below this many weights another kind of product costs more than it saves.
SMALLEST = 2**18


def replace_(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> list[str]:
    """Puts ``make(linear)`` in place of each linear layer of :data:`SMALLEST` weights or more; returns their names."""
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module.weight.numel() >= SMALLEST
    }
    for name, module in found.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, make(module))
    return list(found)

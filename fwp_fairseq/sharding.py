"""Parameters of which each process may hold only a part (FSDP2)."""

import torch
from torch import Tensor, nn


@torch.no_grad()
def assign(parameter: nn.Parameter, value: Tensor) -> None:
    """Sets a parameter to a value; if it is sharded, each process stores its part of the first process's value."""
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(parameter), parameter.device_mesh, parameter.placements)
    parameter.copy_(value)

"""Feedback of the previous output to the slow net."""

import math

import torch
from torch import Tensor, nn

ACTIVATIONS = {"tanh": torch.tanh, "softmax": lambda y: torch.softmax(y, -1)}


class Feedback(nn.Module):
    """Adds R_part f(y_{t-1}) to each part that the slow net computes at position t.

    y_{t-1} is the output of the same head at the previous position (0 before the first), before dropout, output norm
    and output projection. With f = tanh and a linear fast net, this is the Recurrent Delta Net (Irie et al. 2021, Sec.
    3.2): q_t = W_q x_t + R_q tanh(y_{t-1}), and likewise for k, v and the logit of beta. Each head has its own
    matrices, initialised from N(0, 1 / d_key) as in the authors' code.

    Args:
        activation: f, tanh or softmax over the head's width.
        heads, d_key: number of heads, and width of y.
        widths: the widths of the parts.
    """

    def __init__(self, activation: str, heads: int, d_key: int, widths: list[int]):
        super().__init__()
        self.activation, self.widths = activation, widths
        self.weight = nn.Parameter(torch.empty(heads, d_key, sum(widths)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[1]))

    def forward(self, y: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        """Adds the feedback of y (B, H, d_key) to the parts of one position, (B, 1, H, width), in order."""
        fed = torch.einsum("bhi,hij->bhj", ACTIVATIONS[self.activation](y), self.weight.to(y.dtype)).unsqueeze(1)
        return tuple(part + piece for part, piece in zip(parts, fed.split(self.widths, -1), strict=True))

    def extra_repr(self) -> str:
        return self.activation

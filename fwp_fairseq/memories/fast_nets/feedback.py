"""Feedback of the previous output into the slow net."""

import math

import torch
from torch import Tensor, nn

ACTIVATIONS = {"tanh": torch.tanh, "softmax": lambda y: torch.softmax(y, -1)}


class Feedback(nn.Module):
    """Adds R_part f(y_{t-1}) to each part that the slow net gives at position t.

    y is the output of the same head at the previous position (0 at the first), before dropout, the output norm and the
    output projection. With f = tanh and a linear fast net this is the Recurrent Delta Net (Irie et al. 2021, Sec. 3.2):
    q_t = W_q x_t + R_q tanh(y_{t-1}), and k, v and the logit of beta likewise. Each head has its own matrices, which
    start as N(0, 1 / d_key), as in the authors' code.

    Args:
        activation: f, tanh or softmax over the head's width.
        heads, d_key: number of heads, and width of y.
        widths: of the parts by name.
    """

    def __init__(self, activation: str, heads: int, d_key: int, widths: dict[str, int]):
        super().__init__()
        self.activation, self.widths = activation, widths
        self.weight = nn.Parameter(torch.empty(heads, d_key, sum(widths.values())))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[1]))

    def forward(self, parts: dict[str, Tensor], y: Tensor) -> dict[str, Tensor]:
        """Feeds y (B, H, d_key) back into the parts of one position, (B, 1, H, width)."""
        fed = torch.einsum("bhi,hij->bhj", ACTIVATIONS[self.activation](y), self.weight.to(y.dtype)).unsqueeze(1)
        pieces = dict(zip(self.widths, fed.split(list(self.widths.values()), -1), strict=True))
        return {name: part + pieces[name] for name, part in parts.items()}

    def extra_repr(self) -> str:
        return self.activation

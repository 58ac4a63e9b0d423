"""The learned decay of the gated delta rule."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..numerics import state_type
from ..sharding import assign
from .start import small, start

# The approximate number of positions that the first and the last head remember at initialisation; the others lie
# between.
SHORTEST, LONGEST = 100, 1000


class Decay(nn.Module):
    """Computes alpha = exp(-A_h softplus(w_h . x + b_h)) for every head h, one number per position, in (0, 1].

    This form is from Yang, Kautz and Hatamizadeh 2025 ("Gated Delta Networks"), who took it from Mamba2 (Dao and Gu
    2024). A_h > 0 is learned as its logarithm, ``log_rate``, which starts at 0. b_h is set so that each head starts
    with a certain span: if w . x = 0, content decays by exp(-n / span) over n positions. The spans of the heads are
    spaced evenly on a logarithmic scale from 100 to 1000 positions, so that every head remembers a sentence. In the
    paper's code, initial spans are random, and most are below 100.

    Args:
        source_dim: width of x, from which the keys are projected.
        num_heads: number of heads.
    """

    def __init__(self, source_dim: int, num_heads: int):
        super().__init__()
        self.proj = nn.Linear(source_dim, num_heads)
        self.log_rate = nn.Parameter(torch.zeros(num_heads))
        start(self.proj, _draw_steps)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.log_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Computes alpha (..., num_heads) from x (..., source_dim).

        alpha is float32 for half precision, which would round most of it to 1.
        """
        logits = self.proj(x)
        logits, log_rate = (y.to(state_type(logits.dtype)) for y in (logits, self.log_rate))
        return torch.exp(-log_rate.exp() * F.softplus(logits))


def _draw_steps(proj: nn.Linear) -> None:
    small(proj)
    steps = torch.logspace(-math.log10(SHORTEST), -math.log10(LONGEST), proj.out_features, dtype=torch.float64)
    assign(proj.bias, steps.expm1().log())  # softplus of this gives one over the span

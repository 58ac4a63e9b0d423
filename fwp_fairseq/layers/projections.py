"""Initialisation of the projections of attention, as fairseq's attention begins with them."""

import math
from functools import partial

from torch import nn

from ..memories.start import start, xavier


def projection_gain(source_dim: int, embed_dim: int) -> float:
    """Returns the gain of Xavier's rule for q, k and v: smaller if all three have the same input width."""
    return 1 / math.sqrt(2) if source_dim == embed_dim else 1.0


def start_projections(attention: nn.Module, gain: float) -> None:
    """Draws k_proj, v_proj, q_proj and out_proj, and lets their ``reset_parameters`` do so too."""
    for projection in (attention.k_proj, attention.v_proj, attention.q_proj):
        start(projection, partial(xavier, gain=gain))
    start(attention.out_proj, _without_bias)


def _without_bias(linear: nn.Linear) -> None:
    xavier(linear)
    nn.init.zeros_(linear.bias)

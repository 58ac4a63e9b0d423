"""Rotary cross-attention whose position in the source is carried by the decoder's state."""

from torch import Tensor, nn

from fwp_fairseq.modules import SoftmaxCrossAttention
from fwp_fairseq.numerics import state_type

from .start import zeros


class ClockedCrossAttention(SoftmaxCrossAttention):
    """Places query t at sum_{i <= t} exp(w . x_i + b), instead of t, where x_i is the input of the queries.

    Positions are counted from 0 and multiplied by the ratio of lengths, as without the clock. A step is between e^-4
    and e^4; all steps start at 1.
    """

    clock: nn.Linear

    def _query_angles(self, query: Tensor, saved: dict) -> tuple[Tensor, dict]:
        pads, self.target_pads = self.target_pads, None
        steps = self.clock(query)[..., 0].to(state_type(query.dtype)).clamp(-4, 4).exp()
        if pads is not None:
            steps = steps.masked_fill(pads.bool().T, 0)
        time = steps.cumsum(0) + saved.get("time", 0)
        return self.positions.target_angles(time - 1, query), saved | {"time": time[-1]}


def add_clock(attention: SoftmaxCrossAttention) -> None:
    """Adds a clock to cross-attention with rotary positions."""
    if type(attention) is not SoftmaxCrossAttention or attention.positions is None:
        raise TypeError(f"clock: cross-attention is {type(attention).__name__}, expected softmax-rotary")
    attention.__class__ = ClockedCrossAttention
    attention.clock = zeros(attention.embed_dim, 1)

"""One fast weight matrix with feedback of its output, the Recurrent Delta Net."""

from typing import NamedTuple

from torch import Tensor

from ...ops import state
from ...option import Options
from ..memory import Parts
from .fast_net import FastNet, Run


@state.registered
class LinearState(NamedTuple):
    """W (B, H, d_dot, d_key), and fed (B, H, d_key), the previous output if it is fed back."""

    W: Tensor | None
    fed: Tensor | None


class Linear(FastNet):
    """Computes y_t = W_t phi(q_t), with W_t written by the delta rule from k_t, v_t and beta_t.

    With feedback this is the Recurrent Delta Net. A site without feedback uses :class:`..matrix.Matrix` instead, which
    computes the same.
    """

    name, title = "linear", "one matrix"
    State = LinearState

    @classmethod
    def chosen_by(cls, options: Options) -> str | None:
        is_chosen = options.fast_net == cls.name and options.recurrent != "none"
        return "recurrent" if is_chosen else None

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.features.d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: LinearState) -> tuple[Tensor, LinearState]:
        out, W = self.write_and_read(self.features, parts["q"], parts["k"], parts["v"], parts["beta"], state.W, run)
        return out, state._replace(W=W)

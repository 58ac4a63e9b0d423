"""The Delta RNN, a fast net."""

from typing import NamedTuple

from torch import Tensor

from ...ops import recur, state
from ..memory import Parts
from .fast_net import FastNet, Run


@state.registered
class RnnState(NamedTuple):
    """W (B, H, d_dot, d_key); R (B, H, d_key, d_key); y (B, H, d_key), the output; fed, y again if it is fed back."""

    W: Tensor | None
    R: Tensor | None
    y: Tensor | None
    fed: Tensor | None


class Rnn(FastNet):
    """Computes y_t = W_t phi(q_t) + R_t softmax(y_{t-1}), y_0 = 0 (Irie et al. 2021, Sec. 3.1, "Delta RNN").

    The delta rule writes W with the site's k, v and beta, and R with a separate key (after a softmax), value and beta.
    Both are written before they are read.
    """

    name, title = "rnn", "Delta RNN, a second matrix reads the previous output"
    State = RnnState

    def additional_widths(self) -> dict[str, int]:
        return {"k_r": self.d_key, "v_r": self.d_key, "beta_r": 1}

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.features.d_dot, self.d_key), (self.d_key, self.d_key), (self.d_key,)]

    def advance(self, run: Run, parts: Parts, state: RnnState) -> tuple[Tensor, RnnState]:
        z, W = self.write_and_read(self.features, parts["q"], parts["k"], parts["v"], parts["beta"], state.W, run)
        out, R, y = recur(
            z,
            parts["k_r"].softmax(-1),
            parts["v_r"],
            parts["beta_r"].squeeze(-1).sigmoid(),
            key_padding_mask=run.pads,
            R=state.R,
            y=state.y,
            backend=self.options.backend,
        )
        return out, state._replace(W=W, R=R, y=y)

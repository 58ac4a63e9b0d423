"""The Delta RNN."""

from torch import Tensor

from ...ops import recurrence
from .fast_net import FastNet, Parts, Run, State


class Rnn(FastNet):
    """y_t = W_t phi(q_t) + R_t softmax(y_{t-1}), y_0 = 0 (Irie et al. 2021, Sec. 3.1, "Delta RNN").

    W is the site's own fast weight matrix. R is written by the delta rule with the softmax of a key, a value and a
    strength of its own. The order is write, then read, for both.
    """

    name = "rnn"

    def parts(self) -> dict[str, int]:
        return {"k_r": self.d_key, "v_r": self.d_key, "beta_r": 1}

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.d_dot, self.d_key), (self.d_key, self.d_key), (self.d_key,)]

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        W, R, y = state
        z, W = run.remember(parts["q"], parts["k"], parts["v"], parts["beta"].sigmoid(), W, run)
        out, R, y = recurrence.recur(
            z,
            parts["k_r"].softmax(-1),
            parts["v_r"],
            parts["beta_r"].squeeze(-1).sigmoid(),
            key_padding_mask=run.pads,
            R=R,
            y=y,
            backend=self.config.backend,
        )
        return out, [W, R, y]

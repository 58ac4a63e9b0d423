"""The Delta RNN."""

import torch
from torch import Tensor

from .fast_net import FastNet, Parts, Run, State
from .recurrence import Written, delta, keep, nothing, read


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
        written = Written.of(parts["k_r"], parts["v_r"], parts["beta_r"], run.pads)
        R = nothing(z, self.d_key, self.d_key) if R is None else R
        y = nothing(z, self.d_key) if y is None else y
        outputs = []
        for t in range(z.shape[1]):
            R = delta(R, written.at(t))
            out = z[:, t] + read(R, y.softmax(-1))
            y = keep(run.pads, t, y, out)
            outputs.append(out)
        return torch.stack(outputs, 1) if outputs else z, [W, R, y]

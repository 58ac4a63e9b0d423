"""The fast weight programmer of 1991."""

import torch
from torch import Tensor

from ...ops.recurrence import read
from .fast_net import FastNet, Parts, Run, State


class Fwp1991(FastNet):
    """W_t = tanh(W_{t-1} + v_t phi(k_t)^T), y_t = W_t phi(q_t), W_0 = 0.

    These are Eqs. 1 to 3 of Schlag, Irie and Schmidhuber 2021 for the systems of Schmidhuber 1991 and 1992, with v for
    a, k for b and tanh for sigma. The paper reads with the input itself; here, as in all attention, a projection of it
    reads, and the site's map and normaliser apply, of which the equations have none (the map identity). Without tanh
    this is the sum rule.
    """

    name = "fwp1991"

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        q, k = run.features(parts["q"], parts["k"], run)
        v, (W,) = parts["v"], state
        batch, length, heads, d = v.shape
        W = v.new_zeros(batch, heads, self.d_dot, d) if W is None else W
        outputs = []
        for t in range(length):
            after = torch.tanh(W + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2))
            W = after if run.pads is None else torch.where(run.pads[:, t, None, None, None], W, after)
            outputs.append(read(W, q[:, t]))
        return torch.stack(outputs, 1) if outputs else v, [W]

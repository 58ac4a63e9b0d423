"""The fast weight programmer of 1991, a fast net."""

import torch
from torch import Tensor

from ...ops.recurrence import positions, read, unless_pad
from ..memory import Parts
from .fast_net import FastNet, Run
from .linear import LinearState


class Fwp1991(FastNet):
    """Computes W_t = tanh(W_{t-1} + v_t phi(k_t)^T), y_t = W_t phi(q_t), W_0 = 0.

    These are Eqs. 1 to 3 of Schlag, Irie and Schmidhuber 2021 for the systems of Schmidhuber 1991 and 1992, with v for
    a, k for b and tanh for sigma. The paper uses the input itself as the query; here the query is its projection q, as
    in all attention. The site's map and normaliser also apply; the paper has neither. Without tanh this is the sum
    rule.
    """

    name, title = "fwp1991", "one matrix, to which tanh is applied after each write"
    rule = "sum"
    State = LinearState

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.features.d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: LinearState) -> tuple[Tensor, LinearState]:
        q = self.features.phi(self.features.queries(parts["q"]))
        k = self.features.phi(self.features.keys(parts["k"]))
        v, W = parts["v"], state.W
        batch, _, heads, d = v.shape
        W = v.new_zeros(batch, heads, self.features.d_dot, d) if W is None else W.to(v.dtype)
        outputs = []
        for t, (q_t, k_t, v_t) in enumerate(positions(q, k, v)):
            W = unless_pad(run.pads, t, W, torch.tanh(W + k_t.unsqueeze(-1) * v_t.unsqueeze(-2)))
            outputs.append(read(W, q_t))
        return torch.stack(outputs, 1), state._replace(W=W)

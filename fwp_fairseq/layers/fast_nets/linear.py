"""One fast weight matrix; with feedback, the Recurrent Delta Net."""

from torch import Tensor

from .fast_net import FastNet, Parts, Run, State


class Linear(FastNet):
    """y_t = W_t phi(q_t), W_t written by the delta rule with k_t, v_t and beta_t.

    Without feedback this is the delta rule itself, which needs no class; with it, the Recurrent Delta Net.
    """

    name = "linear"

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        out, W = run.remember(parts["q"], parts["k"], parts["v"], parts["beta"].sigmoid(), state[0], run)
        return out, [W]

"""One fast weight matrix; with feedback, the Recurrent Delta Net."""

import torch
from torch import Tensor

from ...feature_maps.favor import LARGEST_EXPONENT
from ...ops import recurrence
from ..site_config import EPS
from .fast_net import FastNet, Parts, Run, State


class Linear(FastNet):
    """y_t = W_t phi(q_t), W_t written by the delta rule with k_t, v_t and beta_t.

    Without feedback this is the delta rule itself, which needs no class; with it, the Recurrent Delta Net. As in its
    paper, with tanh and softmax in place of phi, it is compiled, for CPUs and CUDA.
    """

    name = "linear"

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        out, W = run.remember(parts["q"], parts["k"], parts["v"], parts["beta"].sigmoid(), state[0], run)
        return out, [W]

    def advance_with_feedback(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        if not self._is_compiled(parts["v"]):
            return super().advance_with_feedback(run, parts, state)
        W, y = state
        given = torch.cat([parts[name] for name in ("q", "k", "v", "beta")], -1)
        out, W, y = recurrence.recur_net(
            given, self.feedback.weight, key_padding_mask=run.pads, W=W, y=y, largest=LARGEST_EXPONENT, eps=EPS
        )
        return out, [W, y]

    def _is_compiled(self, x: Tensor) -> bool:
        config = self.config
        softmax = config.feature_map == "exp" and self.d_dot == self.d_key and config.chosen_normalizer == "sum"
        papers = softmax and config.recurrent == "tanh" and config.qk_norm == "none"
        return papers and config.backend in ("auto", "native") and recurrence.serves_net(x)

"""The Delta-Delta Net, a fast net."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...ops import state
from ..features import Features
from ..memory import Parts
from .fast_net import FastNet, Run


@state.registered
class DeltaDeltaState(NamedTuple):
    """The state of a Delta-Delta Net.

    Attributes:
        first: (B, H, d_dot, 3 d_key + 1), the matrix whose output is written to the second.
        second: (B, H, d_dot, d_key).
        fed: (B, H, d_key), the previous output if it is fed back.
    """

    first: Tensor | None
    second: Tensor | None
    fed: Tensor | None


class DeltaDelta(FastNet):
    """Writes a second fast weight matrix with the output of a first (Irie et al. 2021, Sec. 3.1, "Delta-Delta Net").

    The output of the first matrix has width 3 d_key + 1: it is the query, key, value and logit of beta of the second.
    The vectors written to the first matrix have the same four parts, the third of which is the site's v. The delta rule
    writes both matrices, with the same kind of feature map and normaliser; learned maps are not shared.
    """

    name, title = "delta", "Delta-Delta Net, a matrix writes a second one"
    State = DeltaDeltaState

    def build(self) -> None:
        self.second = Features(self.options, self.d_key, self.heads, explicit=True)

    def additional_widths(self) -> dict[str, int]:
        return {"v_q": self.d_key, "v_k": self.d_key, "v_beta": 1}

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.features.d_dot, 3 * self.d_key + 1), (self.second.d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: DeltaDeltaState) -> tuple[Tensor, DeltaDeltaState]:
        value = torch.cat([parts[name] for name in ("v_q", "v_k", "v", "v_beta")], -1)
        programmed, first = self.write_and_read(
            self.features, parts["q"], parts["k"], value, parts["beta"], state.first, run
        )
        q, k, v, beta = programmed.split([self.d_key] * 3 + [1], -1)
        out, second = self.write_and_read(self.second, q, k, v, beta, state.second, run)
        return out, state._replace(first=first, second=second)

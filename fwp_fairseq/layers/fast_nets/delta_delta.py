"""The Delta-Delta Net."""

import torch
from torch import Tensor

from .fast_net import FastNet, Parts, Run, State
from .memory import Memory


class DeltaDelta(FastNet):
    """A fast weight matrix that programs another one (Irie et al. 2021, Sec. 3.1, "Delta-Delta Net").

    The values of the site's own matrix W are 3 d_key + 1 wide. What is read from it is the query, key, value and
    logit of the strength with which a second matrix is read and written, also by the delta rule, with the same kind of
    feature map and normaliser; learned maps are its own. The site's v is the part of the value that becomes the value.
    """

    name = "delta"

    def build(self) -> None:
        self.second = Memory(self.config, self.d_key, self.heads)

    def parts(self) -> dict[str, int]:
        return {"v_q": self.d_key, "v_k": self.d_key, "v_beta": 1}

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.d_dot, 3 * self.d_key + 1), (self.second.feature_map.d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        value = torch.cat([parts[name] for name in ("v_q", "v_k", "v", "v_beta")], -1)
        given, first = run.remember(parts["q"], parts["k"], value, parts["beta"].sigmoid(), state[0], run)
        q, k, v, beta = given.split([self.d_key] * 3 + [1], -1)
        out, second = self.second(q, k, v, beta.sigmoid(), state[1], run)
        return out, [first, second]

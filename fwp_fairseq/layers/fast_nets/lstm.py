"""The Delta LSTM."""

import torch
from torch import Tensor

from ...ops.lstm_recurrence import recur_lstm
from .fast_net import FastNet, Parts, Run, State

GATES = ("u", "i", "o")


class Lstm(FastNet):
    """An LSTM without biases, all of whose weights are fast (Irie et al. 2021, Sec. 3.1, "Delta LSTM").

    With z^g_t = W^g_t phi(q^g_t) + R^g_t softmax(h_{t-1}) for g = i, u, o, and h_0 = c_0 = 0:

        c_t = sigmoid(z^i_t) * z^u_t + (1 - sigmoid(z^i_t)) * c_{t-1}
        h_t = sigmoid(z^o_t) * c_t

    This is version 4 of the authors' code, of which their results are: the update z^u is linear, and the forget gate is
    one minus the input gate. Each of the six matrices is written by the delta rule with parts of its own; the site's q,
    k, v and beta are those of W^u. The three W share the site's feature map.
    """

    name = "lstm"

    def parts(self) -> dict[str, int]:
        found = {}
        for gate in GATES:
            if gate != "u":
                found |= {f"{part}_{gate}": self.d_key for part in ("q", "k", "v")} | {f"beta_{gate}": 1}
            found |= {f"k_r{gate}": self.d_key, f"v_r{gate}": self.d_key, f"beta_r{gate}": 1}
        return found

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.d_dot, self.d_key)] * 3 + [(self.d_key, self.d_key)] * 3 + [(self.d_key,)] * 2

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        from_input, W = [], list(state[:3])
        for number, gate in enumerate(GATES):
            own = "" if gate == "u" else f"_{gate}"
            q, k, v, beta = (parts[f"{part}{own}"] for part in ("q", "k", "v", "beta"))
            z, W[number] = run.remember(q, k, v, beta.sigmoid(), W[number], run)
            from_input.append(z)
        z, (k, v, beta) = torch.cat(from_input, 2), (self._of_all_gates(parts, part) for part in ("k", "v", "beta"))
        R, h, c = None if state[3] is None else torch.cat(state[3:6], 1), *state[6:]
        out, R, h, c = recur_lstm(
            z, k.softmax(-1), v, beta.squeeze(-1).sigmoid(), key_padding_mask=run.pads, R=R, h=h, c=c,
            backend=self.config.backend,
        )  # fmt: skip
        return out, [*W, *R.chunk(3, 1), h, c]

    @staticmethod
    def _of_all_gates(parts: Parts, part: str) -> Tensor:
        """A part of the recurrent matrices, one gate's heads after the other's."""
        return torch.cat([parts[f"{part}_r{gate}"] for gate in GATES], 2)

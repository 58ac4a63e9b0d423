"""The Delta LSTM, a fast net."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...ops import recur_lstm, state
from ..memory import Parts
from .fast_net import FastNet, Run

GATE_NAMES = ("u", "i", "o")


@state.registered
class LstmState(NamedTuple):
    """The matrices of each gate, W (B, H, d_dot, d_key) and R (B, H, d_key, d_key); h, c and fed (B, H, d_key)."""

    W_u: Tensor | None
    W_i: Tensor | None
    W_o: Tensor | None
    R_u: Tensor | None
    R_i: Tensor | None
    R_o: Tensor | None
    h: Tensor | None
    c: Tensor | None
    fed: Tensor | None


class Lstm(FastNet):
    """An LSTM without biases whose weights are all fast (Irie et al. 2021, Sec. 3.1, "Delta LSTM").

    With z^g_t = W^g_t phi(q^g_t) + R^g_t softmax(h_{t-1}) for g = u, i, o, and h_0 = c_0 = 0:

        c_t = sigmoid(z^i_t) * z^u_t + (1 - sigmoid(z^i_t)) * c_{t-1}
        h_t = sigmoid(z^o_t) * c_t

    This is version 4 in the authors' code, which produced their results: the update z^u is linear, and the forget gate
    is one minus the input gate. The delta rule writes each of the six matrices with a separate key, value and beta; the
    site's q, k, v and beta belong to W^u. The three W share the site's feature map.
    """

    name, title = "lstm", "Delta LSTM, three gates of two matrices each"
    State = LstmState

    def additional_widths(self) -> dict[str, int]:
        widths = {}
        for gate in GATE_NAMES:
            if gate != "u":
                widths |= {f"{part}_{gate}": self.d_key for part in ("q", "k", "v")} | {f"beta_{gate}": 1}
            widths |= {f"k_r{gate}": self.d_key, f"v_r{gate}": self.d_key, f"beta_r{gate}": 1}
        return widths

    def shapes(self) -> list[tuple[int, ...]]:
        d_dot, d = self.features.d_dot, self.d_key
        return [(d_dot, d)] * 3 + [(d, d)] * 3 + [(d,)] * 2

    def advance(self, run: Run, parts: Parts, state: LstmState) -> tuple[Tensor, LstmState]:
        from_input, written = [], []
        for gate, W in zip(GATE_NAMES, state[:3], strict=True):
            own = "" if gate == "u" else f"_{gate}"
            q, k, v, beta = (parts[f"{part}{own}"] for part in ("q", "k", "v", "beta"))
            z, W = self.write_and_read(self.features, q, k, v, beta, W, run)
            from_input.append(z)
            written.append(W)
        z, (k, v, beta) = torch.cat(from_input, 2), (self._of_all_gates(parts, part) for part in ("k", "v", "beta"))
        R = None if state.R_u is None else torch.cat(state[3:6], 1)
        out, R, h, c = recur_lstm(
            z, k.softmax(-1), v, beta.squeeze(-1).sigmoid(), key_padding_mask=run.pads, R=R, h=state.h, c=state.c,
            backend=self.options.backend,
        )  # fmt: skip
        return out, LstmState(*written, *R.chunk(3, 1), h, c, state.fed)

    @staticmethod
    def _of_all_gates(parts: Parts, part: str) -> Tensor:
        """Concatenates a part of the recurrent matrices over the gates, along the heads."""
        return torch.cat([parts[f"{part}_r{gate}"] for gate in GATE_NAMES], 2)

"""The Delta LSTM."""

import torch
from torch import Tensor

from ...ops.recurrence import delta, keep, read
from .fast_net import FastNet, Parts, Run, State

GATES = ("i", "o")


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
        for gate in ("u", *GATES):
            if gate != "u":
                found |= {f"{part}_{gate}": self.d_key for part in ("q", "k", "v")} | {f"beta_{gate}": 1}
            found |= {f"k_r{gate}": self.d_key, f"v_r{gate}": self.d_key, f"beta_r{gate}": 1}
        return found

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.d_dot, self.d_key)] * 3 + [(self.d_key, self.d_key)] * 3 + [(self.d_key,)] * 2

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        from_input, written, W, R = [], [], list(state[:3]), list(state[3:6])
        for number, gate in enumerate(("u", *GATES)):
            own = "" if gate == "u" else f"_{gate}"
            q, k, v, beta = (parts[f"{part}{own}"] for part in ("q", "k", "v", "beta"))
            z, W[number] = run.remember(q, k, v, beta.sigmoid(), W[number], run)
            from_input.append(z)
            k, v, beta = (parts[f"{part}_r{gate}"] for part in ("k", "v", "beta"))
            beta = beta.squeeze(-1).sigmoid()
            written.append((k.softmax(-1), v, beta if run.pads is None else beta.masked_fill(run.pads[..., None], 0)))
        batch, length, heads, d = z.shape
        R = [z.new_zeros(batch, heads, d, d) if matrix is None else matrix for matrix in R]
        h, c = (z.new_zeros(batch, heads, d) if x is None else x for x in state[6:])
        outputs = []
        for t in range(length):
            fed = h.softmax(-1)
            R = [delta(matrix, *(x[:, t] for x in parts)) for matrix, parts in zip(R, written, strict=True)]
            u, i, o = (z[:, t] + read(matrix, fed) for z, matrix in zip(from_input, R, strict=True))
            i = i.sigmoid()
            after = i * u + (1 - i) * c
            out = o.sigmoid() * after
            h, c = keep(run.pads, t, h, out), keep(run.pads, t, c, after)
            outputs.append(out)
        return torch.stack(outputs, 1) if outputs else z, [*W, *R, h, c]

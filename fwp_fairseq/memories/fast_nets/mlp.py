"""The Delta MLP, a fast net."""

import dataclasses
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops import state
from ...option import Option, Options
from ..features import Features
from ..memory import Parts
from .fast_net import FastNet, Run

# The width of the hidden layer, in multiples of d_key.
HIDDEN = 4


class WideLayerNorm(nn.LayerNorm):
    """Normalises in the dtype of its input, which is float32 even if the parameters are in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


@state.registered
class MlpState(NamedTuple):
    """W1 (B, H, depth, d_dot, 4 d_key); W2 (B, H, depth, features of the hidden units, d_key); fed (B, H, d_key)."""

    W1: Tensor | None
    W2: Tensor | None
    fed: Tensor | None


class Mlp(FastNet):
    """A feed-forward net of ``depth`` blocks, each with two fast matrices (Irie et al. 2021, "Delta MLP").

    Starting from h = q_t, each block computes

        h <- h + W2_t phi(W1_t phi(norm(h)))

    where ``norm`` is a layer norm over d_key numbers with slow weights, W1 maps to 4 d_key hidden units, and W2 maps
    back. The delta rule writes every matrix with a separate key, value and beta; the site's k and beta belong to the
    first W1, and its v belongs to the first W2. The first W1 uses the site's feature map. Every other matrix has a map
    of its own, of the same name; the option ``d_dot`` does not apply to W2, whose map has its natural width.
    """

    name, title = "mlp", "Delta MLP, blocks of two matrices"
    State = MlpState
    own_options = (
        Option(
            "fast_net_depth", "blocks of the fast net mlp", None, None,
            "number of blocks of the fast net mlp (default: 1)", sites=("decoder",),
        ),
    )  # fmt: skip

    @classmethod
    def resolved(cls, options: Options) -> dict[str, str | int]:
        return {"fast_net_depth": options.fast_net_depth or 1}

    def build(self) -> None:
        self.depth = self.options.fast_net_depth or 1
        self.norms = nn.ModuleList(WideLayerNorm(self.d_key) for _ in range(self.depth))
        natural, hidden = dataclasses.replace(self.options, d_dot=None), HIDDEN * self.d_key
        self.inner = nn.ModuleList(
            Features(self.options, self.d_key, self.heads, explicit=True) for _ in range(self.depth - 1)
        )
        self.outer = nn.ModuleList(Features(natural, hidden, self.heads, explicit=True) for _ in range(self.depth))

    def additional_widths(self) -> dict[str, int]:
        d, hidden = self.d_key, HIDDEN * self.d_key
        widths = {}
        for block in range(self.depth):
            if block:
                widths |= {f"k1_{block}": d, f"beta1_{block}": 1, f"v2_{block}": d}
            widths |= {f"v1_{block}": hidden, f"k2_{block}": hidden, f"beta2_{block}": 1}
        return widths

    def shapes(self) -> list[tuple[int, ...]]:
        hidden = HIDDEN * self.d_key
        return [(self.depth, self.features.d_dot, hidden), (self.depth, self.outer[0].d_dot, self.d_key)]

    def advance(self, run: Run, parts: Parts, state: MlpState) -> tuple[Tensor, MlpState]:
        parts = parts | {"k1_0": parts["k"], "beta1_0": parts["beta"], "v2_0": parts["v"]}
        before = ([None] * self.depth if W is None else W.unbind(2) for W in state[:2])
        h, after = parts["q"], []
        for block, (W1, W2) in enumerate(zip(*before, strict=True)):
            first = self.inner[block - 1] if block else self.features
            k1, v1, beta1, k2, v2, beta2 = (
                parts[f"{part}{layer}_{block}"] for layer in (1, 2) for part in ("k", "v", "beta")
            )
            hidden, W1 = self.write_and_read(first, self.norms[block](h), k1, v1, beta1, W1, run)
            out, W2 = self.write_and_read(self.outer[block], hidden, k2, v2, beta2, W2, run)
            h = h + out
            after.append((W1, W2))
        if run.return_state:
            W1, W2 = (torch.stack(W, 2) for W in zip(*after, strict=True))
            state = state._replace(W1=W1, W2=W2)
        return h, state

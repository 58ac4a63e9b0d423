"""The Delta MLP."""

from torch import Tensor, nn

from .fast_net import FastNet, Parts, Run, State
from .memory import Memory

# Of the hidden layer, in widths of a head.
HIDDEN = 4


class Mlp(FastNet):
    """A feed-forward net of ``depth`` blocks whose two matrices are fast (Irie et al. 2021, "Delta MLP").

    With h = q_t at first, each block does

        h <- h + W2_t phi(W1_t phi(norm(h)))

    where ``norm`` is a layer norm of a head's width with slow weights, W1 leads to 4 d_key hidden units and W2 back.
    Every matrix is written by the delta rule with a key, a value and a strength of its own; the site's k and beta are
    those of the first W1, its v that of the first W2. The first W1 has the site's feature map, the others the same kind
    of map; that of the hidden units has its natural width, and so have learned maps of their own.
    """

    name = "mlp"

    def build(self) -> None:
        self.depth = self.config.fast_net_depth or 1
        self.norms = nn.ModuleList(nn.LayerNorm(self.d_key) for _ in range(self.depth))
        natural = self.config._replace(d_dot=None)
        self.inner = nn.ModuleList(Memory(self.config, self.d_key, self.heads) for _ in range(self.depth - 1))
        self.outer = nn.ModuleList(Memory(natural, HIDDEN * self.d_key, self.heads) for _ in range(self.depth))

    def parts(self) -> dict[str, int]:
        d, hidden = self.d_key, HIDDEN * self.d_key
        found = {}
        for block in range(self.depth):
            if block:
                found |= {f"k1_{block}": d, f"beta1_{block}": 1, f"v2_{block}": d}
            found |= {f"v1_{block}": hidden, f"k2_{block}": hidden, f"beta2_{block}": 1}
        return found

    def shapes(self) -> list[tuple[int, ...]]:
        firsts = [self.d_dot, *(memory.feature_map.d_dot for memory in self.inner)]
        return [
            shape
            for first, second in zip(firsts, self.outer, strict=True)
            for shape in ((first, HIDDEN * self.d_key), (second.feature_map.d_dot, self.d_key))
        ]

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        parts = parts | {"k1_0": parts["k"], "beta1_0": parts["beta"], "v2_0": parts["v"]}
        h, after = parts["q"], []
        for block, (norm, first, second) in enumerate(
            zip(self.norms, [run.remember, *self.inner], self.outer, strict=True)
        ):
            q = nn.functional.layer_norm(h, norm.normalized_shape, norm.weight.to(h.dtype), norm.bias.to(h.dtype))
            k1, v1, beta1, k2, v2, beta2 = (
                parts[f"{part}{layer}_{block}"] for layer in (1, 2) for part in ("k", "v", "beta")
            )
            hidden, W1 = first(q, k1, v1, beta1.sigmoid(), state[2 * block], run)
            out, W2 = second(hidden, k2, v2, beta2.sigmoid(), state[2 * block + 1], run)
            h = h + out
            after += [W1, W2]
        return h, after

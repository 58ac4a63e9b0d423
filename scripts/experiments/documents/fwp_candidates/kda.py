"""The delta rule with a decay for each feature (Kimi Delta Attention, KDA; Kimi Team 2025, "Kimi Linear").

    W_s = (I - beta_s k_s k_s^T) diag(alpha_s) W_{s-1} + beta_s k_s v_s^T,    y_t = W_t^T q_t

for each head, where q, k and alpha have d_dot numbers. With the same decay for all features this is the gated delta
rule.

Within a chunk, the decay of feature i between s and t is exp(g_ti - g_si), where g sums the logarithms of alpha. It is
computed for each pair of positions: as the difference is never above 0, nothing overflows, which the quotient of two
products of decays could. With W0 the state before the chunk:

    Y = M (Q, K) U + (Q * exp(g)) W0,    M(x, k)_ts = sum_i x_ti k_si exp(g_ti - g_si) for s <= t
    U = (I + beta * stril(M(K, K)))^-1 beta * (V - (K * exp(g)) W0)
    W = diag(exp(g_last)) W0 + (K * exp(g_last - g))^T U
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fwp_fairseq.memories.decay import Decay
from fwp_fairseq.memories.matrix import Matrix
from fwp_fairseq.memories.memory import Parts
from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.numerics import without_autocast
from fwp_fairseq.ops.both_ways import in_both_directions
from fwp_fairseq.ops.call import EPS, Call, FastWeights

CHUNK = 16
SMALLEST = 1e-30  # content that decays by more is forgotten in any case; the gradient of the logarithm stays finite


class ChannelDecayMatrix(Matrix):
    """One matrix per head, each feature of which has a decay; its ``decay`` computes one number for each of them."""

    def parts(self, x: Tensor) -> Parts:
        parts = super().parts(x)
        # The spans at which the decays start are spread over the features of each head.
        return parts | {"alpha": parts["alpha"].unflatten(-1, (-1, self.sizes.heads)).transpose(-1, -2)}

    def decodes_lazily(self, k: Tensor) -> bool:
        return False

    def attend(self, q, k, v, parts: Parts, *, key_padding_mask=None, state=None, return_state=False):
        with without_autocast(v):
            q, k = self.features.queries(q), self.features.keys(k)
            return run(
                Call(
                    "gated_delta", q, k, v, parts["beta"], parts["alpha"], None, True, key_padding_mask, False, False,
                    EPS, state, return_state, self.has_both_ways,
                )
            )  # fmt: skip


def decay_by_channel(attention: FastWeightSiteAttention) -> None:
    """Gives attention with the gated delta rule a decay for each feature; its features have length 1."""
    options = getattr(attention, "options", None)
    if options is None or (options.update_rule, options.chosen_normalizer) != ("gated_delta", "l2"):
        raise TypeError(f"kda: self-attention is {type(attention).__name__}, expected gated-delta")
    memory = attention.memory
    memory.__class__ = ChannelDecayMatrix
    memory.decay = Decay(memory.sizes.source_dim, memory.sizes.heads * memory.features.d_dot)


@in_both_directions
def run(call: Call) -> tuple[Tensor, FastWeights | None]:
    """Computes causal outputs (B, L, H, d_value) and the state; alpha of the call is (B, L, H, d_dot)."""
    length = call.v.shape[1]
    size = max(1, min(CHUNK, length))

    def chunks(x: Tensor, at_pads: float = 0) -> Tensor:
        """Converts (B, L, H, width) to (B, H, chunks, size, width); pads at the end change nothing."""
        x = x.to(call.dtype)
        if call.key_padding_mask is not None:
            x = x.masked_fill(call.key_padding_mask[:, :, None, None], at_pads)
        x = F.pad(x.transpose(1, 2), (0, 0, 0, -length % size), value=at_pads)
        return x.unflatten(2, (-1, size))

    q, k, v, beta = map(chunks, (call.q, call.k, call.v, call.beta[..., None]))
    g = chunks(call.alpha, 1).clamp(min=SMALLEST).log().cumsum(-2)
    later = torch.ones(size, size, dtype=torch.bool, device=g.device).tril()[..., None]
    between = (g[..., :, None, :] - g[..., None, :, :]).masked_fill(~later, float("-inf")).exp()
    of_k, of_q = (between * k[..., None, :, :] @ torch.stack([k, q], -1)).unbind(-1)
    targets = beta * torch.cat([v, -(k * g.exp())], -1)
    solved = torch.linalg.solve_triangular(beta * of_k.tril(-1), targets, upper=False, unitriangular=True)
    new, corrections = solved.split([v.shape[-1], k.shape[-1]], -1)
    q, last = q * g.exp(), g[..., -1:, :]
    k, total = (k * (last - g).exp()).mT, last.exp().mT

    state = call.initial_state
    W = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[-1]) if state is None else state.W.to(call.dtype)
    outputs = []
    for part in range(k.shape[2]):
        u = new[:, :, part] + corrections[:, :, part] @ W
        outputs.append(q[:, :, part] @ W + of_q[:, :, part] @ u)
        W = total[:, :, part] * W + k[:, :, part] @ u
    out = torch.cat(outputs, 2)[:, :, :length].transpose(1, 2)
    return out.to(call.v.dtype), FastWeights(W, None) if call.return_state else None

"""Softmax self-attention with rotary positions or short convolutions, which fairseq's attention lacks."""

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

from ..layers.projections import Projections
from ..layers.short_convolution import CONVOLVED
from ..numerics import state_type
from ..options import SiteOptions
from . import incremental_state as states
from .fairseq_attention import AttentionCall, FairseqAttention
from .rotary import rotated, self_angles


class SoftmaxSelfAttention(FairseqAttention, Projections):
    """fairseq's self-attention, with optional short convolutions on queries, keys and values, and rotary positions.

    Queries and keys are rotated after the convolutions.

    Parameters: fairseq's, with the same names and initialisation; with ``conv_size`` also those of ``q_conv``,
    ``k_conv`` and ``v_conv``.

    Args:
        embed_dim: width of inputs and output.
        num_heads: number of heads.
        site: ``encoder`` or ``decoder``.
        options: the options of this site.
        dropout: dropout on the attention weights.
        q_noise, qn_block_size: fairseq's quantisation noise on the projections.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        site: str,
        options: SiteOptions,
        dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__(embed_dim, num_heads, causal=site == "decoder")
        self.site, self.options, self.scaling = site, options, self.head_dim**-0.5
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)
        self.start_projections(options.conv_size)
        self.add_quant_noise(q_noise, qn_block_size, self.k_proj, self.v_proj, self.q_proj, self.out_proj)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        if call.before_softmax:
            raise NotImplementedError("before_softmax: this self-attention returns no scores")
        query, incremental_state = call.query, call.incremental_state
        saved, length = states.load(self, incremental_state), len(query)
        before = saved["k"].shape[2] if saved else 0
        pads = None if call.key_padding_mask is None else call.key_padding_mask.bool()[:, -length:]
        history = {name: saved[f"before_{name}"] for name in CONVOLVED if f"before_{name}" in saved}
        q, k, v = (self.swap_layout(self.project(name, query, pads, history)) for name in CONVOLVED)  # (L, B, H, d)
        if self.options.positions == "rotary":
            angle = self_angles(before, length, q)
            q, k = rotated(q, angle), rotated(k, angle)
        q, k, v = (x.flatten(1, 2).transpose(0, 1) for x in (q * self.scaling, k, v))  # (B H, L, d)
        if incremental_state is not None:
            kept = {name: x.unflatten(0, (-1, self.num_heads)) for name, x in (("k", k), ("v", v))}
            if saved:
                kept = {name: torch.cat([saved[name], x], 2) for name, x in kept.items()}
                k, v = (kept[name].flatten(0, 1) for name in ("k", "v"))
            if pads is not None or "pads" in saved:
                none = query.new_zeros(query.shape[1], before, dtype=torch.bool)
                now = none.new_zeros(len(none), length) if pads is None else pads
                kept["pads"] = pads = torch.cat([saved.get("pads", none), now], 1)
            states.store(self, incremental_state, kept | {f"before_{name}": x for name, x in history.items()})
        weights = self._weights(q @ k.transpose(1, 2), pads, call.attn_mask)
        out = self.dropout_module(weights.type_as(q)) @ v
        out = self.out_proj(out.transpose(0, 1).reshape(query.shape))
        return out, call.shown(weights.unflatten(0, (-1, self.num_heads)).transpose(0, 1))

    def _weights(self, scores: Tensor, pads: Tensor | None, attn_mask: Tensor | None) -> Tensor:
        """Computes the softmax of scores (B H, T, S); float32 for half precision."""
        if attn_mask is not None:
            scores = scores + attn_mask
        if pads is not None:
            # Minus infinity would give NaN at padding that sees only padding.
            hidden, least = pads[:, None, None], torch.finfo(scores.dtype).min
            scores = scores.unflatten(0, (-1, self.num_heads)).masked_fill(hidden, least).flatten(0, 1)
        return scores.softmax(-1, dtype=state_type(scores.dtype))

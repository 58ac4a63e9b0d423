"""Softmax self-attention with rotary positions or short convolutions, which fairseq's own has not."""

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from ..layers.short_convolution import CONVOLVED, History, ShortConvolution
from ..numerics import state_type
from ..options import SiteOptions
from . import incremental_state as states
from .rotary import self_angles, turned


class SelfAttention(MultiheadAttention):
    """fairseq's self-attention, whose queries, keys and values can be convolved and then turned by their positions.

    Parameters: fairseq's, by the same names and with the same initialisation; with ``conv_size`` also those of
    ``q_conv``, ``k_conv`` and ``v_conv``.

    Args:
        embed_dim: width of inputs and output.
        num_heads: number of heads.
        site: ``encoder`` or ``decoder``.
        options: of this site.
        dropout: dropout on the attention weights.
        q_noise, qn_block_size: fairseq's quantisation noise on the projections.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, site: str, options: SiteOptions, dropout: float = 0.0, **noise
    ):
        super().__init__(embed_dim, num_heads, dropout=dropout, self_attention=True, **noise)
        self.site, self.options = site, options
        for name in CONVOLVED:
            size = options.conv_size
            conv = None if size is None else ShortConvolution(embed_dim, size, causal=site == "decoder")
            self.register_module(f"{name}_conv", conv)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends, with the arguments and shapes of fairseq's attention: time is the first dimension.

        Returns:
            ``(out, weights)``, out (T, B, embed_dim); the weights (B, T, S) averaged over heads if they are needed, or
            (H, B, T, S) with ``need_head_weights``, else None.
        """
        if before_softmax:
            raise NotImplementedError("before_softmax: self-attention with rotary positions or convolutions has none")
        saved, length = states.load(self, incremental_state), len(query)
        before = saved["k"].shape[2] if saved else 0
        pads = None if key_padding_mask is None else key_padding_mask.bool()[:, -length:]
        history = {name: saved[f"before_{name}"] for name in CONVOLVED if f"before_{name}" in saved}
        q, k, v = (self._projected(name, query, pads, history) for name in CONVOLVED)
        if self.options.positions == "rotary":
            angle = self_angles(before, length, q)
            q, k = turned(q, angle), turned(k, angle)
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
        weights = self._weights(q @ k.transpose(1, 2), pads, attn_mask)
        out = self.dropout_module(weights.type_as(q)) @ v
        out = self.out_proj(out.transpose(0, 1).reshape(query.shape))
        if not (need_weights or need_head_weights):
            return out, None
        weights = weights.unflatten(0, (-1, self.num_heads)).transpose(0, 1)
        return out, weights if need_head_weights else weights.mean(0)

    def _projected(self, name: str, x: Tensor, pads: Tensor | None, history: History) -> Tensor:
        """q, k or v (L, B, H, d)."""
        y, conv = self.get_submodule(f"{name}_proj")(x), getattr(self, f"{name}_conv")
        if conv is not None:
            y, after = conv(y.transpose(0, 1), history.get(name), pads)
            y = y.transpose(0, 1)
            if after is not None:
                history[name] = after
        return y.unflatten(-1, (self.num_heads, self.head_dim))

    def _weights(self, scores: Tensor, pads: Tensor | None, attn_mask: Tensor | None) -> Tensor:
        """The weights (B H, T, S) of scores; float32 for half precision."""
        if attn_mask is not None:
            scores = scores + attn_mask
        if pads is not None:
            # Not minus infinity, which gives NaN to a pad that reads nothing but pads.
            hidden, least = pads[:, None, None], torch.finfo(scores.dtype).min
            scores = scores.unflatten(0, (-1, self.num_heads)).masked_fill(hidden, least).flatten(0, 1)
        return scores.softmax(-1, dtype=state_type(scores.dtype))

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        return states.reorder(self, incremental_state, new_order)

    def _get_input_buffer(self, incremental_state: dict | None) -> dict:
        return states.load(self, incremental_state)

    def extra_repr(self) -> str:
        return f"site={self.site}, num_heads={self.num_heads}, {self.options.describe(self.head_dim)}"

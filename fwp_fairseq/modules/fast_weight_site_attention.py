"""Attention with a memory and the interface of fairseq's attention."""

from collections.abc import Callable

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

from ..layers.memory_attention import MemoryAttention
from ..memories import State
from ..options import SiteOptions
from . import incremental_state as states
from .fairseq_attention import AttentionCall, FairseqAttention

# In training, attention weights below this value are replaced by it, because guided alignment takes logarithms and a
# weight may be 0.
_SMALLEST_WEIGHT = 1e-6


class FastWeightSiteAttention(FairseqAttention, MemoryAttention):
    """Multi-head attention with fast weights that replaces ``fairseq.modules.MultiheadAttention``.

    It has the same arguments, with time as the first dimension, and the same parameter names and initialisation.

    The ``encoder`` site writes all positions and then reads them. With the option ``passes=both-ways`` it reads each
    position right after its write instead, half of the heads from left to right and the others from right to left.
    Padding may be on either side. The ``decoder`` site is causal, even if fairseq asks for full-context alignment. The
    ``cross`` site writes the source once and then only reads.

    Decoding is lazy if the compiled library supports it: steps read a cache of recent positions, which is folded into a
    state from time to time (:mod:`fwp_fairseq.ops.decoding`). Memory is bounded, reordering hypotheses moves only
    indices, and the hypotheses of a sentence share its source. Under autograd, with other backends and with fast nets,
    every step updates the state of each hypothesis instead.

    Args:
        embed_dim: width of queries and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        site: ``encoder``, ``decoder`` or ``cross``.
        options: the options of this site, checked.
        source_dim: width of the input of keys and values; embed_dim by default.
        dropout: dropout on the values that are read, because the output is computed without attention weights.
        q_noise, qn_block_size: fairseq's quantisation noise on the projections.

    Attributes:
        shows_weights_in_training: True if training returns attention weights, with gradients.
        substitute: a function that replaces fast weights and computes the output (T, B, C) from (self, query, key,
            key_padding_mask), or None; see :mod:`.attention_transfer`.
    """

    shows_weights_in_steps = False  # a decoding step computes no weights

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        site: str,
        options: SiteOptions,
        source_dim: int | None = None,
        dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__(options, embed_dim, num_heads, causal=site == "decoder", source_dim=source_dim)
        self.site = site
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)
        projections = self.k_proj, self.v_proj, self.q_proj, self.out_proj, self.memory.slow
        self.add_quant_noise(q_noise, qn_block_size, *projections)
        self.shows_weights_in_training = False
        self.substitute: Callable[[FastWeightSiteAttention, Tensor, Tensor, Tensor | None], Tensor] | None = None

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Computes the results of a call.

        Weights are the normalised products phi(q).phi(k); with a window, those of both parts. Decoding steps and fast
        nets return no weights. In training, weights depend on :attr:`shows_weights_in_training`. The decoder ignores
        ``attn_mask``, because it is always causal. ``static_kv`` is ignored, because a source is written only once.
        """
        query, key, incremental_state = call.query, call.key, call.incremental_state
        self._refuse(call)
        saved = states.load(self, incremental_state)
        if key is None and not (self.site == "cross" and saved):
            raise ValueError("key is None, expected (S, B, source_dim): nothing has been written yet")
        pads = None if call.key_padding_mask is None else call.key_padding_mask.bool()
        if self.substitute is not None:
            return self.substitute(self, query, key, pads), None
        weights = None
        if incremental_state is None:
            self.check_mask(pads, key)
            q = self.queries(query, pads if self.site != "cross" else None)
            k, *written = self.writes(key, pads)
            out, _ = self.memory("attend", q, k, *written, key_padding_mask=pads)
            if call.wants_weights and (self.shows_weights_in_training or not self.training):
                weights = self._of_heads(self.memory("weights", q, k, pads))
        elif self.site == "decoder":
            out = self._step(query, key, pads, saved, incremental_state)
        else:
            if not saved:
                saved = {"held": self._write_source(key, pads, states.source_rows(incremental_state))}
                states.store(self, incremental_state, saved)
            out = self.memory("read", saved["held"], self.queries(query))
        return self.output(out, query), call.shown(weights)

    def _refuse(self, call: AttentionCall) -> None:
        """Raises NotImplementedError for features of fairseq's attention that this attention lacks."""
        if call.before_softmax:
            raise NotImplementedError("before_softmax: fast-weight attention has no softmax")
        if call.attn_mask is not None and self.site != "decoder":
            raise NotImplementedError(f"attn_mask: the {self.site} site of fast-weight attention reads everything")
        if call.incremental_state is not None and (self.substitute is not None or self.site == "encoder"):
            who = "the encoder site" if self.substitute is None else "attention transfer"
            raise NotImplementedError(f"{who} takes whole sequences: expected no incremental state")

    def _step(self, query, key, key_padding_mask, saved: dict, incremental_state: dict) -> Tensor:
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[:, -key.shape[0] :]
        history = {name: saved[name] for name in saved.keys() - {"held"}}
        q, written = self.queries(query, key_padding_mask, history), self.writes(key, key_padding_mask, history)
        out, held = self.memory("step", saved.get("held"), q, *written, key_padding_mask)
        if history or held is not saved.get("held"):
            states.store(self, incremental_state, {"held": held} | history)
        return out

    def _write_source(self, key: Tensor, key_padding_mask: Tensor | None, rows: Tensor | None):
        rows = torch.arange(key.shape[1], device=key.device) if rows is None else rows.flatten()
        rows = rows.int()
        return self.memory("write", *self.writes(key), key_padding_mask=key_padding_mask, rows=rows)

    def _of_heads(self, weights: Tensor | None) -> Tensor | None:
        """Transposes weights (B, H, T, S) to (H, B, T, S); in training, replaces those below 1e-6 by 1e-6."""
        if weights is None:
            return None
        if self.training:
            weights = weights.clamp(min=_SMALLEST_WEIGHT)
            # Signed feature maps give negative weights; clamping them can make the sum exceed 1.
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
        return weights.transpose(0, 1)

    def store_state(self, incremental_state: dict, state: State) -> None:
        """Makes the next call with this incremental state continue from a state of the memory."""
        held, history = self.split_state(state, state[0])
        states.store(self, incremental_state, {"held": held} | history)

    def load_state(self, incremental_state: dict) -> State:
        """Returns the state that :meth:`store_state` stored, updated by all positions written since then."""
        saved = states.load(self, incremental_state)
        return self.join_state(saved["held"], saved)

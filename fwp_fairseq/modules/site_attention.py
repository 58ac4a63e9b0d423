"""The layer of :mod:`..layers` behind the interface of fairseq's attention."""

from collections.abc import Callable

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor

from ..layers import FastWeightAttention
from ..memories import State
from ..options import SiteOptions
from . import incremental_state as states

# So that guided alignment can take the logarithm of a weight where a query has no feature in common with the source.
_SMALLEST_WEIGHT = 1e-6


class SiteAttention(FairseqIncrementalState, FastWeightAttention):
    """Multi-head attention with fast weights, a replacement for ``fairseq.modules.MultiheadAttention``.

    It is called in the same way, time first, and has the same parameter names and initialisation.

    The ``encoder`` site writes every position, then reads (padding may be on either side). The ``decoder`` site is
    causal, even where fairseq asks for full context alignment. The ``cross`` site writes the source once and only reads
    afterwards.

    Decoding is lazy where the compiled library serves (:mod:`fwp_fairseq.ops.decoding`): memory is bounded, reordering
    hypotheses moves indices only, and hypotheses of one sentence share its source. Under autograd, with other backends
    and with fast nets, every step goes on from the state of each hypothesis instead.

    Args:
        embed_dim: width of queries and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        site: ``encoder``, ``decoder`` or ``cross``.
        options: of this site.
        source_dim: width of the keys' input; embed_dim by default.
        dropout: dropout on the values read, since there are no attention weights to drop.
        q_noise, qn_block_size: fairseq's quantisation noise on the projections.

    Attributes:
        shows_weights_in_training: whether training gives attention weights, with gradients.
        substitute: a function that computes the output (T, B, C) from (self, query, key, key_padding_mask) in place of
            fast weights, or None; see :mod:`.attention_transfer`.
    """

    batch_first = False
    shows_weights_in_steps = False  # steps keep no keys of the source

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
        for projection in (self.k_proj, self.v_proj, self.q_proj, self.out_proj, self.memory.slow):
            if projection is not None:
                quant_noise(projection, q_noise, qn_block_size)
        self.shows_weights_in_training = False
        self.substitute: Callable[[SiteAttention, Tensor, Tensor, Tensor | None], Tensor] | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        need_weights: bool | None = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends, with fairseq's arguments and shapes: time is the first dimension. Returns (out, weights).

        Args:
            query: (T, B, embed_dim), as out is.
            key: (S, B, source_dim), the input of keys and values; ignored by cross-attention once it is written. While
                decoding, the sources that the rows of :func:`.incremental_state.hand_rows` number, if there are any.
            key_padding_mask: (B, S), True at pads.
            incremental_state: fairseq's store of decoding state; None outside decoding.
            need_weights: whether (B, T, S) weights averaged over heads are returned. These are the normalised products
                phi(q).phi(k), or with a window what values are weighed with. Decoding step by step keeps no keys and
                gives none, nor does a fast net; :attr:`shows_weights_in_training` says when training does.
            need_head_weights: whether the weights of each head are returned instead, (H, B, T, S).
            value, static_kv, attn_mask: ignored. Values have the input of keys, and a decoder is causal by itself.
        """
        self._refuse(before_softmax, attn_mask, incremental_state)
        saved = states.load(self, incremental_state)
        if key is None and not (self.site == "cross" and saved):
            raise ValueError("key is None, expected (S, B, source_dim): nothing has been written yet")
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.bool()
        if self.substitute is not None:
            return self.substitute(self, query, key, key_padding_mask), None
        weights = None
        if incremental_state is None:
            self._check_mask(key_padding_mask, key)
            q = self.queries(query, key_padding_mask if self.site != "cross" else None)
            k, *written = self.writes(key, key_padding_mask)
            out, _ = self.memory("attend", q, k, *written, key_padding_mask=key_padding_mask)
            if (need_weights or need_head_weights) and (self.shows_weights_in_training or not self.training):
                weights = self.memory("weights", q, k, key_padding_mask)
        elif self.site == "decoder":
            out = self._step(query, key, key_padding_mask, saved, incremental_state)
        else:
            if not saved:
                saved = {"held": self._write_source(key, key_padding_mask, states.handed_rows(incremental_state))}
                states.store(self, incremental_state, saved)
            out = self.memory("read", saved["held"], self.queries(query))
        return self.output(out, query), self._of_heads(weights, need_head_weights)

    def _refuse(self, before_softmax: bool, attn_mask: Tensor | None, incremental_state: dict | None) -> None:
        """Raises NotImplementedError for what fairseq's attention can do and this cannot."""
        if before_softmax:
            raise NotImplementedError("before_softmax: fast-weight attention has no softmax")
        if attn_mask is not None and self.site != "decoder":
            raise NotImplementedError(f"attn_mask: the {self.site} site of fast-weight attention reads everything")
        if incremental_state is not None and (self.substitute is not None or self.site == "encoder"):
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

    def _of_heads(self, weights: Tensor | None, per_head: bool) -> Tensor | None:
        """(H, B, T, S), or the mean over heads, of weights (B, H, T, S)."""
        if weights is None:
            return None
        if self.training:
            weights = weights.clamp(min=_SMALLEST_WEIGHT)
            # Without the negative ones of a signed feature map, the others can exceed 1 together.
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
        weights = weights.transpose(0, 1)
        return weights if per_head else weights.mean(0)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        return states.reorder(self, incremental_state, new_order)

    def store_state(self, incremental_state: dict, state: State) -> None:
        """Lets the next call with this incremental state go on from this state of the memory."""
        held, history = self.parted(state, len(state[0]))
        states.store(self, incremental_state, {"held": held} | history)

    def load_state(self, incremental_state: dict) -> State:
        """Returns what :meth:`store_state` stored, with what was written since."""
        saved = states.load(self, incremental_state)
        return self.joined(saved["held"], saved)

    def _get_input_buffer(self, incremental_state: dict | None) -> dict:
        return states.load(self, incremental_state)

    def extra_repr(self) -> str:
        return f"site={self.site}, num_heads={self.num_heads}, {self.options.describe(self.head_dim)}"

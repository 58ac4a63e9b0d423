"""One attention module for every combination of feature map, update rule, normaliser and site."""

import dataclasses
from collections.abc import Callable

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor

from .. import ops
from ..layers import window_decoding
from ..layers.heads import EPS, Heads
from ..layers.site_config import SiteConfig
from . import incremental_state as states


class FastWeightAttention(FairseqIncrementalState, Heads):
    """Multi-head attention with fast weights, a replacement for ``fairseq.modules.MultiheadAttention``.

    It is called in the same way, and has the same parameter names and initialisation; :class:`Heads` describes them.

    The ``encoder`` site writes every position, then reads (padding may be on either side). The ``decoder`` site is
    causal, even where fairseq asks for full context alignment. The ``cross`` site writes the source once and only reads
    afterwards.

    Decoding is lazy (:mod:`fwp_fairseq.ops.decoding`): memory is bounded, reordering hypotheses moves indices only (and
    the positions in a window), and hypotheses of one sentence share its source. The lazy form does not support
    autograd, the backend ``reference`` or a fast net; with these, every step goes on from the state of each hypothesis
    instead.

    Args:
        embed_dim: width of queries and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        site: ``encoder``, ``decoder`` or ``cross``.
        config: the options of this site.
        source_dim: width of the keys' input; embed_dim by default.
        dropout: dropout on the values read, since there are no attention weights to drop.
        q_noise, qn_block_size: fairseq's quantisation noise on the projections.
    """

    State = ops.FastWeights

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        site: str,
        config: SiteConfig,
        source_dim: int | None = None,
        dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__(
            embed_dim,
            num_heads,
            causal=site == "decoder",
            config=config,
            dropout=FairseqDropout(dropout, module_name=self.__class__.__name__),
            source_dim=source_dim,
        )
        self.site = site
        self.decoding = None if config.backend == "reference" or self.fast_net is not None else self._make_decoding()
        for projection in (self.k_proj, self.v_proj, self.q_proj, self.out_proj):
            quant_noise(projection, q_noise, qn_block_size)
        if self.fast_net is not None and self.fast_net.slow is not None:
            quant_noise(self.fast_net.slow, q_noise, qn_block_size)
        self.need_weights_at_inference = True
        # A function that computes the output (T, B, C) in place of fast weights; see attention_transfer.py.
        self.substitute: Callable[[FastWeightAttention, Tensor, Tensor, Tensor | None], Tensor] | None = None

    def _make_decoding(self) -> ops.Decoding | window_decoding.Decoding:
        config, phi = self.config, self.operator_map
        known = None if phi.kernel is None else phi
        usual = ops.Decoding(config.update_rule, known, *config.normalizes, eps=EPS, backend=config.backend)
        if self.window is None:
            return usual
        far = dataclasses.replace(usual, normalize_output=False)
        return window_decoding.Decoding(self.window, self.feature_map, self.query_map or self.feature_map, far)

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
        """Attends, with the arguments and shapes of fairseq's attention: time is the first dimension.

        Args:
            query: (T, B, embed_dim).
            key: (S, B, source_dim), the input of keys and values; ignored by cross-attention once it is written.
            value: ignored; fairseq always passes the same tensor as key.
            key_padding_mask: (B, S), True at pads.
            incremental_state: fairseq's store of decoding state; None outside decoding.
            need_weights: whether (B, T, S) weights averaged over heads are returned. These are the normalised products
                phi(q).phi(k), or with a window what values are weighed with. They are computed in evaluation
                only, and not by a decoder that decodes step by step, because it keeps no keys, or that has a fast net.
            static_kv: whether the keys never change (cross-attention).
            attn_mask: a decoder's mask of the future; ignored, because this module is causal by itself.
            need_head_weights: whether the weights of each head are returned instead, (H, B, T, S).

        Returns:
            ``(out, weights)``, out (T, B, embed_dim).
        """
        if before_softmax:
            raise NotImplementedError("before_softmax: fast-weight attention has no softmax")
        if attn_mask is not None and self.site != "decoder":
            raise NotImplementedError(f"attn_mask: the {self.site} site of fast-weight attention reads everything")
        saved = states.load(self, incremental_state)
        if key is None and not (static_kv and saved):
            raise ValueError("key is None, expected (S, B, source_dim): nothing has been written yet")
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.bool()
        if self.substitute is not None:
            if incremental_state is not None:
                raise NotImplementedError("attention transfer compares whole sequences: expected no incremental state")
            return self.substitute(self, query, key, key_padding_mask), None
        if self.fast_net is not None:
            return self._output(self._advance(query, key_padding_mask, saved, incremental_state), query), None
        q = self._project_queries(query)
        wants_weights = (need_weights or need_head_weights) and not self.training and self.need_weights_at_inference
        per_head = need_head_weights if wants_weights else None
        if incremental_state is None:
            out, weights = self._attend_at_once(q, key, key_padding_mask, per_head)
        elif self._decodes_lazily(saved, static_kv):
            out, weights = self._decode_lazily(q, key, key_padding_mask, saved, incremental_state, per_head)
        else:
            out, weights = self._decode_by_state(
                q, key, key_padding_mask, saved, incremental_state, static_kv and "W" in saved, per_head
            )
        return self._output(out, query), weights

    def _advance(self, query, key_padding_mask, saved, incremental_state) -> Tensor:
        """Goes on with the fast net from where the incremental state is, or from the beginning without one."""
        decodes = incremental_state is not None
        if decodes and key_padding_mask is not None:
            key_padding_mask = key_padding_mask[:, -query.shape[0] :]
        state = ops.FastWeights(saved["W"], None) if saved else None
        out, state = self._run_fast_net(query, key_padding_mask, state, return_state=decodes)
        if decodes:
            self.store_state(incremental_state, state)
        return out

    def _attend_at_once(self, q: Tensor, key: Tensor, key_padding_mask: Tensor | None, per_head: bool | None):
        k, v, strengths = self._project(key, key_padding_mask)
        out, _ = self._operate(q, k, v, strengths, key_padding_mask)
        return out, None if per_head is None else self._weights(q, k, key_padding_mask, per_head)

    def _decodes_lazily(self, saved: dict, static_kv: bool) -> bool:
        if self.decoding is None or "W" in saved or self.site != ("cross" if static_kv else "decoder"):
            return False
        if "cache" in saved and torch.is_grad_enabled():
            raise RuntimeError("decoding began under torch.no_grad() and cannot be differentiated from here on")
        return not torch.is_grad_enabled()

    def _decode_lazily(
        self, q, key, key_padding_mask, saved, incremental_state, per_head
    ) -> tuple[Tensor, Tensor | None]:
        cache = saved.get("cache")
        if self.site == "decoder":
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[:, -key.shape[0] :]
            k, v, strengths = self._project(key, key_padding_mask)
            q, k = self._decoded(q), self._decoded(k)
            out, written = self.decoding.step(cache, q, k, v, **strengths, key_padding_mask=key_padding_mask)
            if cache is None:
                states.store(self, incremental_state, {"cache": written})
            return out, None
        if cache is None:
            key, key_padding_mask, rows = states.distinct_sources(key, key_padding_mask)
            k, v, strengths = self._project(key, key_padding_mask)
            cache = self.decoding.write(self._decoded(k), v, **strengths, key_padding_mask=key_padding_mask, rows=rows)
            saved = {"cache": cache}
            if per_head is not None:
                saved |= states.source(k, key_padding_mask)
            states.store(self, incremental_state, saved)
        weights = None
        if per_head is not None and "k" in saved:
            rows = cache.rows.long()
            key_padding_mask = saved["key_padding_mask"][rows] if "key_padding_mask" in saved else None
            weights = self._weights(q, saved["k"][rows], key_padding_mask, per_head)
        return self.decoding.read(cache, self._decoded(q)), weights

    def _decoded(self, x: Tensor) -> Tensor:
        """What decoding is given: features (B, L, H, d_dot) of a map that the kernels do not know, else x."""
        return self._phi(x) if self.decoding.feature_map is None else x

    def _decode_by_state(
        self, q, key, key_padding_mask, saved, incremental_state, reads_only: bool, per_head
    ) -> tuple[Tensor, Tensor | None]:
        if reads_only:
            key_padding_mask = None
            k, v, strengths = self._nothing_to_write(q)
        else:
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[:, -key.shape[0] :]
            k, v, strengths = self._project(key, key_padding_mask)
        initial_state = (saved["W"], saved.get("z")) if saved else None
        out, state = self._operate(q, k, v, strengths, key_padding_mask, initial_state=initial_state, return_state=True)
        buffer, weights = {"W": state.W} | ({} if state.z is None else {"z": state.z}), None
        if self.site == "cross" and per_head is not None:
            source = saved if reads_only else states.source(k, key_padding_mask)
            if "k" in source:
                weights = self._weights(q, source["k"], source.get("key_padding_mask"), per_head)
            buffer |= {name: source[name] for name in ("k", "key_padding_mask") if name in source}
        states.store(self, incremental_state, buffer)
        return out, weights

    @staticmethod
    def _batch_first(x: Tensor) -> Tensor:
        return x.transpose(0, 1)

    def make_generation_fast_(self, need_attn: bool = False, **kwargs) -> None:
        """Prepares for decoding: without --print-alignment (``need_attn``) nobody reads the attention weights."""
        self.need_weights_at_inference = need_attn
        self.fold_maps()

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        return states.reorder(self, incremental_state, new_order)

    def store_state(self, incremental_state: dict, state: ops.FastWeights) -> None:
        """Lets the next call with this incremental state go on from these fast weights."""
        states.store(self, incremental_state, {"W": state.W} | ({} if state.z is None else {"z": state.z}))

    def load_state(self, incremental_state: dict) -> ops.FastWeights:
        """Returns what :meth:`store_state` stored, with what was written since."""
        saved = states.load(self, incremental_state)
        return ops.FastWeights(saved["W"], saved.get("z"))

    def _get_input_buffer(self, incremental_state: dict | None) -> dict[str, Tensor]:
        return states.load(self, incremental_state)

    def _set_input_buffer(self, incremental_state: dict, buffer: dict[str, Tensor]) -> dict:
        return states.store(self, incremental_state, buffer)

    def extra_repr(self) -> str:
        return f"site={self.site}, num_heads={self.num_heads}, {self.config.describe(self.head_dim)}"

"""One attention module for every combination of feature map, update rule, normaliser and site."""

import math

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from .. import ops
from ..config import SiteConfig
from ..feature_maps import FeatureMap, build_feature_map
from ..ops.call import divide, state_type
from . import incremental_state as states
from .feature_normalizers import FEATURE_NORMALIZERS
from .head_norm import HeadNorm
from .query_key_norm import QueryKeyNorm

_EPS = 1e-6


class FastWeightAttention(FairseqIncrementalState, nn.Module):
    """Multi-head attention with fast weights, a replacement for ``fairseq.modules.MultiheadAttention``.

    It is called in the same way, and has the same parameter names and initialisation (q_proj, k_proj, v_proj, out_proj
    with bias). The delta and gated rules add ``beta_proj``, which computes one write strength per head and source
    position from the input of the keys. ``--fwp-qk-norm`` adds ``qk_norm``, one scale per head. Learned maps have their
    parameters in ``feature_map`` and, if queries have a map of their own, in ``query_map``. ``--fwp-output-norm`` adds
    ``output_norm``, one weight per value. Queries are not scaled by d_key^-1/2.

    The ``encoder`` site writes every position, then reads (padding may be on either side). The ``decoder`` site is
    causal, even where fairseq asks for full context alignment. The ``cross`` site writes the source once and only reads
    afterwards.

    Decoding is lazy (:mod:`fwp_fairseq.ops.decoding`): memory is bounded, reordering hypotheses moves indices only, and
    hypotheses of one sentence share its source. The lazy form does not support autograd or the backend ``reference``;
    with these, every step calls the operator with the state of each hypothesis instead.

    Args:
        embed_dim: width of queries and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        site: ``encoder``, ``decoder`` or ``cross``.
        config: the options of this site.
        source_dim: width of the keys' input; embed_dim by default.
        dropout: dropout on the values read, since there are no attention weights to drop.
        q_noise, qn_block_size: fairseq's quantisation noise on the projections.
    """

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
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim = {embed_dim} is not divisible by num_heads = {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.source_dim = source_dim or embed_dim
        self.site = site
        self.config = config
        self.normalize_features, self.normalize_output = config.normalizes
        self.feature_map = config.build_feature_map(self.head_dim, num_heads)
        # Of the queries, where a learned map is not the same for both.
        self.query_map = None if self.feature_map.shared else config.build_feature_map(self.head_dim, num_heads)
        self.feature_normalizer = FEATURE_NORMALIZERS.get(config.chosen_normalizer)
        self.finished = build_feature_map("identity", self.feature_map.d_dot)
        self.decoding = None
        if config.backend != "reference":
            self.decoding = ops.Decoding(
                config.update_rule, self.operator_map, *config.normalizes, eps=_EPS, backend=config.backend
            )
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)

        def linear(width: int) -> nn.Module:
            return quant_noise(nn.Linear(width, embed_dim), q_noise, qn_block_size)

        # Created in the order of fairseq's own module, so that the same seed initialises both alike.
        self.k_proj = linear(self.source_dim)
        self.v_proj = linear(self.source_dim)
        self.q_proj = linear(embed_dim)
        self.out_proj = linear(embed_dim)
        # The write strength of the paper's delta rule has no bias; the gate of Peng et al. has one.
        self.beta_proj = (
            None
            if config.update_rule == "sum"
            else nn.Linear(self.source_dim, num_heads, bias=config.update_rule == "gated")
        )
        # As in fairseq: smaller weights if the three projections have the same input width.
        self.gain = 1 / math.sqrt(2) if self.source_dim == self.embed_dim else 1.0
        self.qk_norm = None if config.qk_norm == "none" else QueryKeyNorm(num_heads, self.head_dim, self._variance())
        self.output_norm = None if config.output_norm == "none" else HeadNorm(num_heads, self.head_dim)
        self.need_weights_at_inference = True
        self.reset_parameters()

    @property
    def operator_map(self) -> FeatureMap:
        """What the operator applies; features that must be finished before they are normalised it takes as they are."""
        return self.feature_map.rest() if self.feature_normalizer is None else self.finished

    def _variance(self) -> float:
        """Of an entry of a fresh query times that of a key, the square root; inputs have entries of variance 1."""
        # Xavier's weights have the variance 2 gain^2 / (inputs + outputs): gain^2 of a query, more or less of a key.
        return self.gain**2 * math.sqrt(2 * self.source_dim / (self.source_dim + self.embed_dim))

    def reset_parameters(self) -> None:
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=self.gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        if self.beta_proj is not None:
            # As in the paper's code: beta is about a half at the start of training.
            nn.init.normal_(self.beta_proj.weight, std=0.02)
            if self.beta_proj.bias is not None:
                nn.init.zeros_(self.beta_proj.bias)

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
                phi(q).phi(k). They are computed in evaluation only, and not by a decoder that decodes step by step,
                because it keeps no keys.
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
        if self.output_norm is not None:
            out = self.output_norm(out)
        out = out.transpose(0, 1).reshape(query.shape).to(query.dtype)  # features may be wider than what they are of
        return self.out_proj(self.dropout_module(out)), weights

    def _attend_at_once(self, q: Tensor, key: Tensor, key_padding_mask: Tensor | None, per_head: bool | None):
        k, v, beta = self._project(key, key_padding_mask)
        out, _ = self._operate(q, k, v, beta, key_padding_mask)
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
            k, v, beta = self._project(key, key_padding_mask)
            out, written = self.decoding.step(cache, q, k, v, beta, key_padding_mask)
            if cache is None:
                states.store(self, incremental_state, {"cache": written})
            return out, None
        if cache is None:
            key, key_padding_mask, rows = states.distinct_sources(key, key_padding_mask)
            k, v, beta = self._project(key, key_padding_mask)
            cache = self.decoding.write(k, v, beta, key_padding_mask, rows)
            saved = {"cache": cache}
            if per_head is not None:
                saved |= states.source(k, key_padding_mask)
            states.store(self, incremental_state, saved)
        weights = None
        if per_head is not None and "k" in saved:
            rows = cache.rows.long()
            key_padding_mask = saved["key_padding_mask"][rows] if "key_padding_mask" in saved else None
            weights = self._weights(q, saved["k"][rows], key_padding_mask, per_head)
        return self.decoding.read(cache, q), weights

    def _decode_by_state(
        self, q, key, key_padding_mask, saved, incremental_state, reads_only: bool, per_head
    ) -> tuple[Tensor, Tensor | None]:
        if reads_only:
            k = q[:, :0]
            v = q.new_empty(*k.shape[:3], self.head_dim)
            beta = None if self.beta_proj is None else k[..., 0]
            key_padding_mask = None
        else:
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[:, -key.shape[0] :]
            k, v, beta = self._project(key, key_padding_mask)
        initial_state = (saved["W"], saved.get("z")) if saved else None
        out, state = self._operate(q, k, v, beta, key_padding_mask, initial_state=initial_state, return_state=True)
        buffer, weights = {"W": state.W} | ({} if state.z is None else {"z": state.z}), None
        if self.site == "cross" and per_head is not None:
            source = saved if reads_only else states.source(k, key_padding_mask)
            if "k" in source:
                weights = self._weights(q, source["k"], source.get("key_padding_mask"), per_head)
            buffer |= {name: source[name] for name in ("k", "key_padding_mask") if name in source}
        states.store(self, incremental_state, buffer)
        return out, weights

    def _project_queries(self, query: Tensor) -> Tensor:
        """What the operator is given of the queries."""
        q = self._prepared(self._split_heads(self.q_proj(query)), self.query_map or self.feature_map)
        return q if self.feature_normalizer is None else self.feature_normalizer.queries(q)

    def _project(self, key: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Likewise of what is written: keys, values and write strengths."""
        k = self._prepared(self._split_heads(self.k_proj(key)), self.feature_map)
        if self.feature_normalizer is not None:
            k = self.feature_normalizer.keys(k, key_padding_mask)
        v = self._split_heads(self.v_proj(key))
        return k, v, None if self.beta_proj is None else self._strength(key)

    def _prepared(self, x: Tensor, feature_map: FeatureMap) -> Tensor:
        """From projected to what the operator's map takes, or to finished features; (B, L, H, width)."""
        if self.qk_norm is not None:
            x = self.qk_norm(x)
        x = x.transpose(1, 2)
        return (feature_map.prepare(x) if self.feature_normalizer is None else feature_map(x)).transpose(1, 2)

    def _strength(self, key: Tensor) -> Tensor:
        logits = self.beta_proj(key)
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        return torch.sigmoid(logits).transpose(0, 1)

    def _split_heads(self, x: Tensor) -> Tensor:
        """(L, B, C) -> (B, L, H, C / H), a view."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)

    def _operate(self, q, k, v, beta, key_padding_mask, **state_options) -> tuple[Tensor, ops.FastWeights | None]:
        operator = getattr(ops, f"{self.config.update_rule}_rule")
        return operator(
            q,
            k,
            v,
            *(() if beta is None else (beta,)),
            feature_map=self.operator_map,
            causal=self.site == "decoder",
            key_padding_mask=key_padding_mask,
            normalize_features=self.normalize_features,
            normalize_output=self.normalize_output,
            eps=_EPS,
            backend=self.config.backend,
            **state_options,
        )

    def _weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, per_head: bool) -> Tensor:
        """The products phi(q).phi(k), normalised over the sources: (H, B, T, S), or (B, T, S) averaged over heads."""
        with torch.autocast(q.device.type, enabled=False):
            phi_q, phi_k = (self.operator_map(x.transpose(1, 2)) for x in (q, k))
            gram = (phi_q @ phi_k.mT).transpose(0, 1)
            if key_padding_mask is not None:
                gram = gram.masked_fill(key_padding_mask[None, :, None], 0)
            if self.site == "decoder":
                gram = gram.tril()
            weights = divide(gram, gram.sum(-1, keepdim=True))
        return weights if per_head else weights.mean(0)

    def make_generation_fast_(self, need_attn: bool = False, **kwargs) -> None:
        """Prepares for decoding. Without --print-alignment (``need_attn``) nobody reads the attention weights."""
        self.need_weights_at_inference = need_attn

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        return states.reorder(self, incremental_state, new_order)

    def nothing_written(self, rows: int, like: Tensor) -> ops.FastWeights:
        """Returns the state before anything is written, for inputs of the type and device of ``like``."""
        shape, kind = (rows, self.num_heads, self.feature_map.d_dot), state_type(like.dtype)
        z = like.new_zeros(shape, dtype=kind) if self.normalize_output else None
        return ops.FastWeights(like.new_zeros(*shape, self.head_dim, dtype=kind), z)

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

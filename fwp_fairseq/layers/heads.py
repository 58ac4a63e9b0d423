"""What the heads of attention with fast weights compute, whatever framework calls them."""

import math

import torch
from torch import Tensor, nn

from .. import ops
from ..feature_maps import FeatureMap, LearnedMap, build_feature_map
from ..ops.both_ways import meeting
from ..ops.call import divide, state_type
from .decay import Decay
from .fast_nets import FAST_NETS, Run
from .feature_normalizers import FEATURE_NORMALIZERS
from .head_norm import HeadNorm
from .query_key_norm import QueryKeyNorm
from .site_config import BETA_RANGES, EPS, SiteConfig
from .window import Window


class Heads(nn.Module):
    """Projections, feature map, norms and update rule of one site; a subclass adds ``forward``.

    Parameters: q_proj, k_proj, v_proj and out_proj with bias, named and initialised as in fairseq's attention. Every
    rule but the sum rule adds ``beta_proj``, which computes one write strength per head and source position from the
    input of the keys; the gated delta rule adds ``decay``, which computes alpha (:class:`.decay.Decay`). ``qk_norm``
    adds one scale per head. Learned maps have their parameters in ``feature_map`` and, if queries have a map of their
    own, in ``query_map``. ``output_norm`` adds one weight per value. ``fast_net`` has the parameters of a fast net
    other than one matrix, and of feedback, ``window`` those of a window. Queries are not scaled by d_key^-1/2.

    Args:
        embed_dim: width of queries and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        causal: whether a position reads after its own write, or after everything is written.
        config: the options of this site.
        dropout: applied to the values read, since there are no attention weights to drop.
        source_dim: width of the keys' input; embed_dim by default.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool,
        config: SiteConfig,
        dropout: nn.Module,
        source_dim: int | None = None,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim = {embed_dim} is not divisible by num_heads = {num_heads}")
        self.has_both_ways = config.passes == "both-ways"
        if self.has_both_ways and num_heads % 2:
            raise ValueError(f"passes = 'both-ways' needs an even number of heads, got num_heads = {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.source_dim = source_dim or embed_dim
        self.causal = causal
        self.config = config
        self.normalize_features, self.normalize_output = config.normalizes
        self.feature_map = config.build_feature_map(self.head_dim, num_heads)
        # Of the queries, where a learned map is not the same for both.
        self.query_map = None if self.feature_map.shared else config.build_feature_map(self.head_dim, num_heads)
        self.feature_normalizer = FEATURE_NORMALIZERS.get(config.chosen_normalizer)
        self.finished = build_feature_map("identity", self.feature_map.d_dot)
        # Created in the order of fairseq's own module, so that the same seed initialises both alike.
        self.k_proj = nn.Linear(self.source_dim, embed_dim)
        self.v_proj = nn.Linear(self.source_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        # The write strengths of the delta rules' papers have no bias; the gate of Peng et al. has one.
        self.beta_proj = (
            None
            if "beta" not in ops.STRENGTHS[config.update_rule]
            else nn.Linear(self.source_dim, num_heads, bias=config.update_rule == "gated")
        )
        self.decay = Decay(self.source_dim, num_heads) if "alpha" in ops.STRENGTHS[config.update_rule] else None
        # As in fairseq: smaller weights if the three projections have the same input width.
        self.gain = 1 / math.sqrt(2) if self.source_dim == self.embed_dim else 1.0
        self.qk_norm = None if config.qk_norm == "none" else QueryKeyNorm(num_heads, self.head_dim, self._variance())
        self.output_norm = None if config.output_norm == "none" else HeadNorm(num_heads, self.head_dim)
        self.fast_net = None
        if config.has_fast_net:
            self.fast_net = FAST_NETS[config.fast_net](
                config, embed_dim, num_heads, self.head_dim, self.feature_map.d_dot, self.gain
            )
        self.window = None if config.window is None else Window(config.window, num_heads, self.head_dim, config.backend)
        self.dropout_module = dropout
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

    def fold_maps(self) -> None:
        """Multiplies learned matrices into the projections of queries and keys, for decoding.

        The function stays the same, but the projections have other shapes then, so neither can be trained or loaded
        any more. Nothing is done where something else comes between a projection and the map, or reads what it gives.
        """
        if not self.maps_can_fold:
            return
        k_map, q_map = self.feature_map, self.query_map or self.feature_map
        self.q_proj, self.k_proj = q_map.folded_into(self.q_proj), k_map.folded_into(self.k_proj)
        q_map.is_folded = k_map.is_folded = True

    @property
    def maps_can_fold(self) -> bool:
        """Whether learned matrices follow the projections of queries and keys at once, and as matrices of their own."""
        if not isinstance(self.feature_map, LearnedMap) or self.feature_map.is_folded:
            return False
        return self.qk_norm is None and not self.config.reads_by_softmax and self.fast_net is None

    def nothing_written(self, rows: int, like: Tensor) -> ops.FastWeights:
        """Returns the state before anything is written, for inputs of the type and device of ``like``."""
        shape, kind = (rows, self.num_heads, self.feature_map.d_dot), state_type(like.dtype)
        if self.fast_net is not None or self.window is not None:
            packed = self.window.state_size(shape[2]) if self.fast_net is None else self.fast_net.state_size
            return ops.FastWeights(like.new_zeros(*shape[:2], packed, 1, dtype=kind), None)
        z = like.new_zeros(shape, dtype=kind) if self.normalize_output else None
        return ops.FastWeights(like.new_zeros(*shape, self.head_dim, dtype=kind), z)

    @staticmethod
    def _batch_first(x: Tensor) -> Tensor:
        """(B, L, ...) of the caller's layout, or the other way round; a subclass may have another layout."""
        return x

    def _project_queries(self, query: Tensor) -> Tensor:
        """What the operator is given of the queries."""
        folded = self._folded_product(self.q_proj, self.query_map or self.feature_map, query)
        return self._queries(self._split_heads(self.q_proj(query))) if folded is None else folded

    def _project(self, key: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Likewise of what is written: keys, values and strengths, by the names of the operator's arguments."""
        k = self._folded_product(self.k_proj, self.feature_map, key)
        if k is None:
            k = self._keys(self._split_heads(self.k_proj(key)), key_padding_mask)
        v = self._split_heads(self.v_proj(key))
        return k, v, self._strengths(key)

    def _folded_product(self, projection: nn.Linear, feature_map: FeatureMap, x: Tensor) -> Tensor | None:
        """In training, what the operator is given of x, by one matrix product instead of two; None if it costs more."""
        if not (self.training and self.maps_can_fold and self.feature_normalizer is None):
            return None
        if not feature_map.is_cheaper_folded(projection, x.shape[:-1].numel()):
            return None
        y = self._split_heads(feature_map.folded_product(projection, x))
        return feature_map.biased(y.transpose(1, 2)).transpose(1, 2)

    def _nothing_to_write(self, q: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Keys, values and strengths of no position, for a call that only reads with q."""
        k = q[:, :0]
        strengths = dict.fromkeys(ops.STRENGTHS[self.config.update_rule], k[..., 0])
        return k, q.new_empty(*k.shape[:3], self.head_dim), strengths

    def _queries(self, q: Tensor) -> Tensor:
        """From projected queries (B, L, H, d_key) to what the operator is given."""
        q, feature_map = self._directed(q), self.query_map or self.feature_map
        if self.feature_normalizer is not None:
            return self.feature_normalizer.queries(feature_map, q)
        return q if self.config.reads_by_softmax else self._mapped(q, feature_map)

    def _keys(self, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Likewise from projected keys."""
        k = self._directed(k)
        if self.feature_normalizer is not None:
            return self.feature_normalizer.keys(self.feature_map, k, key_padding_mask)
        return k if self.config.reads_by_softmax else self._mapped(k, self.feature_map)

    def _directed(self, x: Tensor) -> Tensor:
        return x if self.qk_norm is None else self.qk_norm(x)

    @staticmethod
    def _mapped(x: Tensor, feature_map: FeatureMap) -> Tensor:
        """What the operator's map takes, from what a window takes; (B, L, H, width)."""
        return feature_map.prepare(x.transpose(1, 2)).transpose(1, 2)

    def _mapped_both(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """What the operator's map takes, from projected queries and keys."""
        return self._mapped(q, self.query_map or self.feature_map), self._mapped(k, self.feature_map)

    def _strengths(self, key: Tensor) -> dict[str, Tensor]:
        found = {}
        if self.beta_proj is not None:
            logits = self.beta_proj(key)
            beta, largest = torch.sigmoid(logits.to(state_type(logits.dtype))), BETA_RANGES[self.config.beta_range]
            found["beta"] = self._batch_first(beta if largest == 1 else largest * beta)
        if self.decay is not None:
            found["alpha"] = self._batch_first(self.decay(key))
        return found

    def _split_heads(self, x: Tensor) -> Tensor:
        """From the caller's layout, of width C, to (B, L, H, C / H), a view."""
        return self._batch_first(x.unflatten(-1, (self.num_heads, -1)))

    def _output(self, out: Tensor, query: Tensor) -> Tensor:
        """From what the heads read, (B, T, H, d_value), to the result for these queries, in their layout and type."""
        if self.output_norm is not None:
            out = self.output_norm(out)
        out = self._batch_first(out).reshape(query.shape).to(query.dtype)  # features may be wider than what they are of
        return self.out_proj(self.dropout_module(out))

    def _operate(self, q, k, v, strengths, key_padding_mask, **state_options) -> tuple[Tensor, ops.FastWeights | None]:
        if self.config.reads_by_softmax:
            return self._operate_with_softmax(q, k, v, key_padding_mask, **state_options)
        operator = getattr(ops, f"{self.config.update_rule}_rule")
        both_ways = {"both_ways": True} if self.has_both_ways else {}  # which the sum rule does not take
        return operator(
            q,
            k,
            v,
            **strengths,
            **both_ways,
            feature_map=self.operator_map,
            causal=self.causal or self.has_both_ways,
            key_padding_mask=key_padding_mask,
            normalize_features=self.normalize_features,
            normalize_output=self.normalize_output,
            eps=EPS,
            backend=self.config.backend,
            **state_options,
        )

    def _operate_with_softmax(self, q, k, v, key_padding_mask, initial_state=None, return_state=False):
        """With a window: by the weights of all pairs where that is cheaper and no state is concerned."""
        if initial_state is None and not return_state and self._takes_pairs(q, k):
            weights = self._pair_weights(q, k, key_padding_mask)
            return (weights @ v.transpose(1, 2).to(weights.dtype)).transpose(1, 2).to(v.dtype), None
        return self._operate_with_window(q, k, v, key_padding_mask, initial_state, return_state)

    def _operate_with_window(self, q, k, v, key_padding_mask, initial_state, return_state):
        def write_far(q, k, v, key_padding_mask, state):
            return ops.sum_rule(
                *self._mapped_both(q, k), v, feature_map=self.operator_map, key_padding_mask=key_padding_mask,
                normalize_output=False, initial_state=state, return_state=return_state, backend=self.config.backend,
            )  # fmt: skip

        held = None if initial_state is None else self.window.unpacked(initial_state, self.feature_map.d_dot)
        out, held = self.window.advance(write_far, q, k, v, key_padding_mask, held)
        return out, self.window.packed(held, self.feature_map.d_dot) if return_state else None

    def _takes_pairs(self, q: Tensor, k: Tensor) -> bool:
        """Whether a backend that may choose how it computes takes :meth:`_pair_weights`."""
        return self.config.backend in ("auto", "chunked") and self.window.takes_pairs(q)

    def _pair_weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """What each query reads of each position with a window, in shares of 1: (B, H, T, S)."""
        with torch.autocast(q.device.type, enabled=False):
            phi_q, phi_k = (self.operator_map(x.transpose(1, 2)) for x in self._mapped_both(q, k))
            return self.window.weights(q, k, phi_q @ phi_k.mT, key_padding_mask)

    def _run_fast_net(
        self, x: Tensor, key_padding_mask: Tensor | None, state: ops.FastWeights | None, return_state: bool
    ) -> tuple[Tensor, ops.FastWeights | None]:
        """Writes and reads with every position of an input of the caller's layout, one after the other.

        Returns what is read, (B, L, H, d_value), and the state (W, None) if asked for: W (B, H, N, 1) holds everything
        that the fast net carries.
        """
        run = Run(self._remember, self._features, key_padding_mask, return_state)
        out, W = self.fast_net(run, self._parts(x), None if state is None else state.W)
        return out, None if W is None else ops.FastWeights(W, None)

    def _parts(self, x: Tensor) -> dict[str, Tensor]:
        """What the slow net gives a fast net for an input of the caller's layout, by name: (B, L, H, width)."""
        found = {
            "q": self._split_heads(self.q_proj(x)),
            "k": self._split_heads(self.k_proj(x)),
            "v": self._split_heads(self.v_proj(x)),
        }
        if self.beta_proj is not None:
            found["beta"] = self._batch_first(self.beta_proj(x)).unsqueeze(-1)
        return found | {name: self._batch_first(part) for name, part in self.fast_net.project(x).items()}

    def _remember(self, q, k, v, beta, W: Tensor | None, run: Run) -> tuple[Tensor, Tensor | None]:
        """The site's own operator, for a fast net: :class:`.fast_nets.fast_net.Run` says how it is called."""
        out, state = self._operate(
            self._queries(q), self._keys(k, run.pads), v, {"beta": beta.squeeze(-1)}, run.pads,
            initial_state=None if W is None else (W, None), return_state=run.return_state,
        )  # fmt: skip
        return out, None if state is None else state.W

    def _features(self, q: Tensor, k: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """What the site's operator makes of queries and keys, for a fast net that writes by itself."""
        phi_q, phi_k = self._phi(self._queries(q)), self._phi(self._keys(k, run.pads))
        if self.normalize_features:
            phi_q, phi_k = (divide(phi, phi.sum(-1, keepdim=True) + EPS) for phi in (phi_q, phi_k))
        return phi_q, phi_k

    def _phi(self, x: Tensor) -> Tensor:
        """The features that the operator's map makes of (B, L, H, width), in this layout, before any normalisation."""
        return self.operator_map(x.transpose(1, 2)).transpose(1, 2)

    def _weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, per_head: bool) -> Tensor:
        """What each query reads of each source, in shares of 1: (H, B, T, S), or (B, T, S) averaged over heads.

        These are the products phi(q).phi(k), divided by their sum over the sources, or what a window gives.
        """
        if self.config.reads_by_softmax:
            weights = self._pair_weights(q, k, key_padding_mask).transpose(0, 1)
            return weights if per_head else weights.mean(0)
        with torch.autocast(q.device.type, enabled=False):
            phi_q, phi_k = (self.operator_map(x.transpose(1, 2)) for x in (q, k))
            gram = (phi_q @ phi_k.mT).transpose(0, 1)
            if key_padding_mask is not None:
                gram = gram.masked_fill(key_padding_mask[None, :, None], 0)
            if self.has_both_ways:
                gram = meeting(gram)
            elif self.causal:
                gram = gram.tril()
            weights = divide(gram, gram.sum(-1, keepdim=True))
        return weights if per_head else weights.mean(0)

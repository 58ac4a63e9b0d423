"""Decodes step by step from a cache of recent positions, which costs less than updating the state at every step.

For a sentence, the state (d_dot x d_value numbers per head) is larger than the keys and values it is computed from. A
:class:`Cache` therefore keeps, for each position j of the current *block*, the key k_j and the vector u_j that the rule
wrote with it: v_j under the sum rule and the gated rule, and beta_j (v_j - old_j) under the delta rules, where old_j is
the previous value of k_j. Under the rules with decay it also keeps the gate. The state (W, z) contains all earlier
blocks. A query reads

    out_t = g W q + sum_j w_j (q.k_j) u_j,   divided by  g z.q + sum_j w_j (q.k_j) + eps  if the output is normalised

where q and k_j are features, divided by their sums if the site normalises them. The weights w_j and g are 1 under the
sum rule and the delta rule. Under the gated delta rule, w_j is the product of all later alpha, and g the product of all
alpha of the block. Under the gated rule, w_j is beta_j times the product of all later 1 - beta, and g the product of
all 1 - beta of the block.

When a block is full, its positions are *folded*: they are written into the state, and a new block begins. Memory
therefore stays bounded for outputs of any length. :func:`longest_block` gives the maximum length of a block.

Results equal those of the operators in :mod:`.fast_weights` up to rounding. Steps and folding are compiled. If the
library does not support a site, attention decodes with those operators instead, and each hypothesis has its own state.

Two index tables say where hypothesis r reads: its position j is in row ``ancestors[r, j]`` of the block, and its state
is in row ``rows[r]``. If several hypotheses share a source, ``rows[r]`` is the row of that source. Reordering
hypotheses only rearranges these tables.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..feature_maps import FeatureMap
from ..numerics import state_type
from . import decoding_native, fast_weights
from .call import DECAYING, EPS, FastWeights, Rule
from .fast_weights import divided_features

# After the first fold, a block is read in addition to the state, so it is kept short.
LATER_BLOCK = 32
_SHORTEST_BLOCK = 32
_FIRST_CAPACITY = 16


def longest_block(d_dot: int, d_cached: int, d_value: int) -> int:
    """Returns the number of positions up to which reading a block costs less than reading the state, at least 32.

    A block has d_cached + d_value numbers per position, the state d_dot d_value numbers. If keys are cached and d_key =
    d_value, the two are equal at d_dot / 2 positions. The result is at most 128: beyond, the products of features
    dominate the cost.
    """
    return min(max(d_dot * d_value // (d_cached + d_value), _SHORTEST_BLOCK), decoding_native.LONGEST_BLOCK)


def _to_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    # A call of ``to`` that changes nothing takes as long as a small kernel.
    return x if x.dtype == dtype else x.to(dtype)


@dataclass
class Cache:
    """Holds what was written so far. R rows (hypotheses) read from N rows of storage; a block has room for C positions.

    Attributes:
        keys: (C, N, H, d_cached), features, divided by their sums if the site normalises them. If features are wider
            than keys, never negative, and homogeneous (phi(c x) = c^n phi(x)), keys are stored instead, scaled so that
            phi of a stored key is normalised.
        written: (C, N, H, d_value), the written vectors u_j.
        dtype: the dtype of the values before they were converted for the cache.
        strengths: (C, N, H), beta_j of the gated rule, alpha_j of the gated delta rule, else None.
        ancestors: (R, C) int32, the row in which each position of each hypothesis is stored; None for a shared source,
            for which that row is always ``rows[r]``.
        rows: (R,) int32, the row of the state or of the shared source that each hypothesis reads.
        count: the number of positions in the block.
        W, z: the states of N' rows after the earlier blocks, (N', H, d_dot, d_value) and (N', H, d_dot), or None.
        projection: FAVOR+'s (d_key, m) matrix, else None.
    """

    keys: Tensor
    written: Tensor
    dtype: torch.dtype
    strengths: Tensor | None
    ancestors: Tensor | None
    rows: Tensor
    count: int = 0
    W: Tensor | None = None
    z: Tensor | None = None
    projection: Tensor | None = None

    def reorder(self, order: Tensor) -> None:
        """Replaces row i by row order[i]; ``order`` may have any length."""
        if self.ancestors is not None:
            self.ancestors = self.ancestors.index_select(0, order)
        if self.ancestors is None or self.W is not None:
            self.rows = self.rows.index_select(0, order)


@dataclass(frozen=True)
class Decoding:
    """Decodes at one attention site with fixed options, which :mod:`.fast_weights` describes.

    Inputs are (rows, positions, heads, width), and there are no gradients. On a CPU, half-precision inputs are
    converted to float32, also in the cache. The CUDA kernels, which spend most of their time reading the cache, keep
    keys and values in the dtypes of k and v, and states and gates in float32. A step modifies the tensors of its
    cache, so each cache can be continued only once.
    """

    rule: Rule
    feature_map: FeatureMap | None
    normalize_features: bool
    normalize_output: bool
    eps: float = EPS
    backend: str = "auto"

    def serves(self, like: Tensor) -> bool:
        """Returns True if this class can decode with keys like these, (R, T, H, width).

        Raises NotImplementedError if the backend ``native`` is asked for and the library does not support them.
        """
        if self.backend not in ("auto", "native"):
            return False
        reasons = decoding_native.unsupported_reasons(self, like)
        if reasons and self.backend == "native":
            raise NotImplementedError(f"backend='native' cannot decode with the {self.rule} rule: {'; '.join(reasons)}")
        return not reasons

    def step(
        self,
        cache: Cache | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None = None,
        alpha: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Writes the T positions of k, v (R, T, H, d) one after another, and reads with q after each write.

        Returns out (R, T, H, d_value) in v's dtype, and the updated cache. ``cache`` is None in the first step.

        Cost per position, row and head, with n positions in the block: n (d_dot + d_value) multiplications, and n
        (d_cached + d_value) numbers read; once there is a state, d_dot d_value more of each.
        """
        if self.divides_first:
            q, k = (divided_features(x, self.feature_map, state_type(x.dtype), self.eps) for x in (q, k))
            return self._of_features().step(cache, q, k, v, beta, alpha, key_padding_mask)
        dtype = v.dtype
        if cache is None:
            cache = self._empty(k, v, _FIRST_CAPACITY)
            cache.ancestors = torch.zeros(k.shape[0], _FIRST_CAPACITY, dtype=torch.int32, device=k.device)
        q = _to_dtype(q, cache.keys.dtype)
        k, v, beta, alpha = self._prepared(cache, k, v, beta, alpha)
        length = q.shape[1]
        if length == 1 and cache.count < cache.keys.shape[0] and k.shape[0] <= cache.keys.shape[1]:
            out = decoding_native.run(self, q, cache, k, v, beta, alpha, key_padding_mask)
            cache.count += 1
        else:
            outputs, first = [], 0
            while first < length:
                room = self._make_room(cache, length - first, k.shape[0])
                part = slice(first, first + room)
                outputs.append(
                    decoding_native.run(
                        self, q[:, part], cache, k[:, part], v[:, part],
                        *(None if x is None else x[:, part] for x in (beta, alpha, key_padding_mask)),
                    )
                )  # fmt: skip
                cache.count += room
                first += room
            out = torch.cat(outputs, 1) if outputs else torch.empty_like(v)
        return out.to(dtype), cache

    def write(
        self,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None = None,
        alpha: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None,
        rows: Tensor,
    ) -> Cache:
        """Writes whole sources k, v (N, S, H, d) into a new cache; row r will read source ``rows[r]`` (R, int32).

        A source of up to :func:`longest_block` positions is kept as a block; a longer one becomes a state.
        """
        if self.divides_first:
            k = divided_features(k, self.feature_map, state_type(k.dtype), self.eps)
            return self._of_features().write(k, v, beta, alpha, key_padding_mask=key_padding_mask, rows=rows)
        sources = k.shape[1]
        fits = sources <= longest_block(self.d_dot(k), self.d_cached(k), v.shape[-1])
        cache = self._empty(k, v, sources if fits else 0)
        k, v, beta, alpha = self._prepared(cache, k, v, beta, alpha)
        if not fits:
            cache.W, cache.z = self._state_of(k, v, (beta, alpha), key_padding_mask)
        else:
            cache.ancestors = torch.empty(k.shape[0], sources, dtype=torch.int32, device=k.device)
            # The written vectors do not depend on the queries, so any queries will do.
            decoding_native.run(self, k, cache, k, v, beta, alpha, key_padding_mask)
            cache.ancestors, cache.count = None, sources
        cache.rows = rows
        return cache

    def read(self, cache: Cache, q: Tensor) -> Tensor:
        """Reads everything in the cache with q (R, T, H, d_key).

        Returns out (R, T, H, d_value) in the dtype of the values that were written.
        """
        if self.divides_first:
            features = divided_features(q, self.feature_map, state_type(q.dtype), self.eps)
            return self._of_features().read(cache, features)
        return decoding_native.run(self, _to_dtype(q, cache.keys.dtype), cache).to(cache.dtype)

    @property
    def divides_first(self) -> bool:
        """Returns True if eps is so small (:data:`.fast_weights.SMALLEST_EPS`) that features are normalised first."""
        return self.normalize_features and self.eps < fast_weights.SMALLEST_EPS

    def _of_features(self) -> "Decoding":
        return replace(self, feature_map=None, normalize_features=False)

    def d_dot(self, k: Tensor) -> int:
        """Returns the number of features of keys like k."""
        return k.shape[-1] if self.feature_map is None else self.feature_map.d_dot

    def d_cached(self, k: Tensor) -> int:
        """Returns the width of the cached form of keys like k: that of keys or of features."""
        return k.shape[-1] if self.keeps_keys else self.d_dot(k)

    @property
    def keeps_keys(self) -> bool:
        """Returns True if the cache stores keys and computes their features on reading, instead of storing features."""
        phi = self.feature_map
        return phi is not None and phi.homogeneity is not None and phi.non_negative and phi.d_dot > phi.d_key

    @staticmethod
    def _prepared(cache: Cache, k: Tensor, v: Tensor, *gates: Tensor | None) -> list[Tensor | None]:
        """Converts k to the dtype of cached keys, v to that of cached values, and gates to that of states."""
        rows = [_to_dtype(k, cache.keys.dtype), _to_dtype(v, cache.written.dtype)]
        dtype = state_type(cache.keys.dtype)
        return rows + [None if x is None else _to_dtype(x, dtype) for x in gates]

    def _empty(self, k: Tensor, v: Tensor, capacity: int) -> Cache:
        count, _, heads, d_value = v.shape
        projection = None if self.feature_map is None else self.feature_map.kernel_projection()
        of_keys, of_values = decoding_native.cached_types(k, v)
        dtype = state_type(of_keys)
        return Cache(
            keys=v.new_empty(capacity, count, heads, self.d_cached(k), dtype=of_keys),
            written=v.new_empty(capacity, count, heads, d_value, dtype=of_values),
            dtype=v.dtype,
            strengths=v.new_empty(capacity, count, heads, dtype=dtype) if self.rule in DECAYING else None,
            ancestors=None,
            rows=torch.arange(count, dtype=torch.int32, device=v.device),
            projection=None if projection is None else projection.to(dtype).T.contiguous(),
        )

    def _make_room(self, cache: Cache, wanted: int, rows: int) -> int:
        """Makes room in the block for ``rows`` rows; returns how many of the wanted positions fit into it.

        A block that is already full is first folded into the state.
        """
        capacity, stored, _, d_cached = cache.keys.shape
        d_value = cache.written.shape[-1]
        if cache.W is None:
            d_dot = d_cached if self.feature_map is None else self.feature_map.d_dot
            longest = longest_block(d_dot, d_cached, d_value)
        else:
            longest = LATER_BLOCK
        if cache.count >= longest:
            cache.W, cache.z = decoding_native.fold(self, cache)
            cache.rows = torch.arange(cache.ancestors.shape[0], dtype=torch.int32, device=cache.rows.device)
            cache.count, longest = 0, LATER_BLOCK
            self._resize(cache, LATER_BLOCK, max(rows, stored))
        room = min(wanted, longest - cache.count)
        if cache.count + room > cache.keys.shape[0] or rows > stored:
            while capacity < cache.count + room:
                capacity *= 2
            self._resize(cache, min(capacity, longest), max(rows, stored))
        return room

    @staticmethod
    def _resize(cache: Cache, capacity: int, rows: int) -> None:
        """Moves the block into new storage for ``capacity`` positions of ``rows`` rows."""

        def resized(x: Tensor) -> Tensor:
            larger = x.new_empty(capacity, rows, *x.shape[2:])
            larger[: cache.count, : x.shape[1]] = x[: cache.count]
            return larger

        if (capacity, rows) == tuple(cache.keys.shape[:2]):
            return
        cache.keys, cache.written = resized(cache.keys), resized(cache.written)
        cache.strengths = None if cache.strengths is None else resized(cache.strengths)
        ancestors = cache.ancestors.new_zeros(cache.ancestors.shape[0], capacity)
        ancestors[:, : cache.count] = cache.ancestors[:, : cache.count]
        cache.ancestors = ancestors

    def _state_of(self, k: Tensor, v: Tensor, gates, key_padding_mask: Tensor | None) -> FastWeights:
        _, state = fast_weights.FUNCTIONS[self.rule](
            k[:, :0], k, v, *(x for x in gates if x is not None), feature_map=self.feature_map, causal=False,
            key_padding_mask=key_padding_mask, normalize_features=self.normalize_features,
            normalize_output=self.normalize_output, eps=self.eps, backend=self.backend, return_state=True,
        )  # fmt: skip
        return state

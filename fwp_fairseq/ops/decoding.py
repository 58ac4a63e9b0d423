"""Decodes step by step from a cache of recent positions, which is cheaper than updating the state at every step.

At the length of a sentence the state (d_dot x d_value numbers per head) is larger than the keys and values that went
into it. A :class:`Cache` therefore keeps, for each position j of the current *block*, the key k_j and the vector u_j
that the rule wrote with it. For the sum rule and the gated rule this is v_j, for the delta rules beta_j (v_j - old_j),
where old_j is the previous value of k_j. For the rules with decay it also keeps the gate. The state (W, z) holds all
earlier blocks. A query reads

    out_t = g W q + sum_j w_j (q.k_j) u_j,   divided by  g z.q + sum_j w_j (q.k_j) + eps  if the output is normalised

with q = phi(q_t), k_j = phi(k_j), and features divided by their sums if the site normalises them. w_j = g = 1, except
for the rules with decay: under the gated rule w_j is beta_j times the product of all later 1 - beta, under the gated
delta rule the product of all later alpha, and g is that product over the block.
Results equal those of the operators of :mod:`.fast_weights` up to rounding. Steps and folding (below) are compiled.
Where the library cannot serve a site, attention decodes by the operators themselves, with a state for each hypothesis.

When a block is full, its positions are written into the state, which is called *folding*, and a new block begins. So
memory stays bounded however long the output grows. :func:`longest_block` decides how long a block may be.

Hypotheses are rows of tables: position j of row r is stored in row ``ancestors[r, j]`` of the block, and row r reads
row ``rows[r]`` of the state, or of a source that several rows share. Reordering hypotheses composes these tables and
moves nothing else.
"""

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from .._operator import Operator
from ..feature_maps import FeatureMap
from ..numerics import state_type
from . import decoding_native, fast_weights
from .call import DECAYING, EPS, RULES, FastWeights, Rule
from .fast_weights import divided_features

OPERATORS: dict[Rule, Operator] = {
    rule: Operator(f"decoding with the {rule} rule", native=decoding_native) for rule in RULES
}

# A block that follows a folded one is read in addition to the state, so it is kept short.
LATER_BLOCK = 32
_SHORTEST_BLOCK = 32
_FIRST_CAPACITY = 16


def longest_block(d_dot: int, d_cached: int, d_value: int) -> int:
    """Returns the number of positions up to which a block is cheaper to read than the state, within 32..128.

    A block costs d_cached + d_value numbers per position, the state d_dot d_value. With raw keys of d_value numbers the
    two costs meet at d_dot / 2. Beyond 128 the products with so many features cost more than reading the state.
    """
    return min(max(d_dot * d_value // (d_cached + d_value), _SHORTEST_BLOCK), decoding_native.LONGEST_BLOCK)


def _to_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    # A call of ``to`` that changes nothing costs as much as a small kernel.
    return x if x.dtype == dtype else x.to(dtype)


@dataclass
class Cache:
    """Holds all that was written so far: R rows (hypotheses) read N rows of storage; C is the capacity of the block.

    Attributes:
        keys: (C, N, H, d_cached), normalised features. For homogeneous maps, phi(c x) = c^n phi(x), whose features are
            wider than keys, it holds the keys, scaled so that phi of a stored key is normalised already.
        written: (C, N, H, d_value), the written vectors u_j.
        strengths: (C, N, H), beta_j of the gated rule, alpha_j of the gated delta rule, else None.
        ancestors: (R, C) int32, the row in which each position of each hypothesis is stored; None for a shared source,
            where that row is ``rows[r]`` at every position.
        rows: (R,) int32, the row of the state or of the shared source that each hypothesis reads.
        count: number of positions in the block.
        W, z: the state of the earlier blocks, (N', H, d_dot, d_value) and (N', H, d_dot), or None.
        projection: FAVOR+'s (d_key, m) matrix, else None.
    """

    keys: Tensor
    written: Tensor
    strengths: Tensor | None
    ancestors: Tensor | None
    rows: Tensor
    count: int = 0
    W: Tensor | None = None
    z: Tensor | None = None
    projection: Tensor | None = None

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; ``order`` may have any length."""
        if self.ancestors is not None:
            self.ancestors = self.ancestors.index_select(0, order)
        if self.ancestors is None or self.W is not None:
            self.rows = self.rows.index_select(0, order)


@dataclass(frozen=True)
class Decoding:
    """Decodes at one attention site, whose options, described in :mod:`.fast_weights`, are the same at every step.

    Inputs are (rows, positions, heads, width), and nothing is differentiated. Half-precision inputs are computed and
    cached in float32. The CUDA kernels, which spend their time reading the cache, keep keys and values in half
    precision and only states and strengths in float32. Steps write into the tensors of a cache, so it can be continued
    only once.
    """

    rule: Rule
    feature_map: FeatureMap | None
    normalize_features: bool
    normalize_output: bool
    eps: float = EPS
    backend: str = "auto"

    def serves(self, like: Tensor) -> bool:
        """Returns True if keys like these, (R, T, H, width), are decoded here.

        With the backend ``native`` they always are, and a step raises NotImplementedError if the library cannot.
        """
        if self.backend == "auto":
            return not decoding_native.unsupported_reasons(self, like)
        return self.backend == "native"

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
        """Writes the T positions of k, v (R, T, H, d) one after the other, and reads with q after each write.

        Returns out (R, T, H, d_value) in v's dtype and the continued cache. ``cache`` is None in the first step.

        Cost per position, row and head, with n positions in the block: n (d_dot + d_value) products and
        n (d_cached + d_value) numbers read; once there is a state, d_dot d_value more of each.
        """
        if self.divides_first:
            q, k = (divided_features(x, self.feature_map, state_type(x.dtype), self.eps) for x in (q, k))
            return self._of_features().step(cache, q, k, v, beta, alpha, key_padding_mask)
        dtype = v.dtype
        kept = None if cache is None else cache.keys.dtype
        (q, k, v), (beta, alpha) = self._prepared(kept, (q, k, v), (beta, alpha))
        if cache is None:
            cache = self._empty(k, v, _FIRST_CAPACITY)
            cache.ancestors = torch.zeros(k.shape[0], _FIRST_CAPACITY, dtype=torch.int32, device=k.device)
        length = q.shape[1]
        if length == 1 and cache.count < cache.keys.shape[0] and k.shape[0] <= cache.keys.shape[1]:
            out = self._decode(q, cache, k, v, beta, alpha, key_padding_mask)
            cache.count += 1
        else:
            outputs, first = [], 0
            while first < length:
                room = self._make_room(cache, length - first, k.shape[0])
                part = slice(first, first + room)
                outputs.append(
                    self._decode(
                        q[:, part], cache, k[:, part], v[:, part],
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

        Sources of up to :func:`longest_block` positions are kept as a block; longer ones become a state.
        """
        if self.divides_first:
            k = divided_features(k, self.feature_map, state_type(k.dtype), self.eps)
            return self._of_features().write(k, v, beta, alpha, key_padding_mask=key_padding_mask, rows=rows)
        (k, v), (beta, alpha) = self._prepared(None, (k, v), (beta, alpha))
        sources = k.shape[1]
        if sources > longest_block(self.d_dot(k), self.d_cached(k), v.shape[-1]):
            cache = self._empty(k, v, 0)
            cache.W, cache.z = self._state_of(k, v, (beta, alpha), key_padding_mask)
        else:
            cache = self._empty(k, v, sources)
            cache.ancestors = torch.empty(k.shape[0], sources, dtype=torch.int32, device=k.device)
            # Any queries will do: the written vectors do not depend on them.
            self._decode(k, cache, k, v, beta, alpha, key_padding_mask)
            cache.ancestors, cache.count = None, sources
        cache.rows = rows
        return cache

    def read(self, cache: Cache, q: Tensor) -> Tensor:
        """Reads everything in the cache with q (R, T, H, d_key); returns out (R, T, H, d_value) in q's dtype."""
        if self.divides_first:
            features = divided_features(q, self.feature_map, state_type(q.dtype), self.eps)
            return self._of_features().read(cache, features).to(q.dtype)
        (x,), _ = self._prepared(cache.keys.dtype, (q,))
        return self._decode(x, cache).to(q.dtype)

    def _decode(self, q: Tensor, cache: Cache, *written: Tensor | None) -> Tensor:
        return OPERATORS[self.rule](self.backend, self, q, cache, *written)

    @property
    def divides_first(self) -> bool:
        """Returns True if features are divided before kernels get them (:data:`.fast_weights.SMALLEST_EPS`)."""
        return self.normalize_features and self.eps < fast_weights.SMALLEST_EPS

    def _of_features(self) -> "Decoding":
        return replace(self, feature_map=None, normalize_features=False)

    def d_dot(self, k: Tensor) -> int:
        """Returns the number of features of keys like k."""
        return k.shape[-1] if self.feature_map is None else self.feature_map.d_dot

    def d_cached(self, k: Tensor) -> int:
        """Returns the width at which keys like k are cached: that of keys or of features."""
        return k.shape[-1] if self.keeps_keys else self.d_dot(k)

    @property
    def keeps_keys(self) -> bool:
        """Returns True if the cache holds keys, whose features are computed when they are read, instead of features."""
        phi = self.feature_map
        return phi is not None and phi.homogeneity is not None and phi.non_negative and phi.d_dot > phi.d_key

    def _prepared(
        self, dtype: torch.dtype | None, inputs: tuple[Tensor, ...], strengths: tuple[Tensor | None, ...] = ()
    ):
        """Converts the inputs to the cache's type and strengths to that of states.

        ``dtype`` is the cache's type, or None if there is no cache yet.
        """
        widest = dtype or reduce(torch.promote_types, [x.dtype for x in inputs])
        dtype = dtype or decoding_native.cached_type(_to_dtype(inputs[0], widest))
        strengths = [None if x is None else _to_dtype(x, state_type(dtype)) for x in strengths]
        return [_to_dtype(x, dtype) for x in inputs], strengths

    def _empty(self, k: Tensor, v: Tensor, capacity: int) -> Cache:
        count, _, heads, d_value = v.shape
        projection = None if self.feature_map is None else self.feature_map.kernel_projection()
        return Cache(
            keys=v.new_empty(capacity, count, heads, self.d_cached(k)),
            written=v.new_empty(capacity, count, heads, d_value),
            strengths=v.new_empty(capacity, count, heads, dtype=state_type(v.dtype)) if self.rule in DECAYING else None,
            ancestors=None,
            rows=torch.arange(count, dtype=torch.int32, device=v.device),
            projection=None if projection is None else projection.to(state_type(v.dtype)).T.contiguous(),
        )

    def _make_room(self, cache: Cache, wanted: int, rows: int) -> int:
        """Makes room in the block for ``rows`` rows; returns how many of the wanted positions fit before it is full.

        A block that is full already is folded into the state first.
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

    def _state_of(self, k: Tensor, v: Tensor, strengths, key_padding_mask: Tensor | None) -> FastWeights:
        _, state = fast_weights.FUNCTIONS[self.rule](
            k[:, :0], k, v, *(x for x in strengths if x is not None), feature_map=self.feature_map, causal=False,
            key_padding_mask=key_padding_mask, normalize_features=self.normalize_features,
            normalize_output=self.normalize_output, eps=self.eps, backend=self.backend, return_state=True,
        )  # fmt: skip
        return state

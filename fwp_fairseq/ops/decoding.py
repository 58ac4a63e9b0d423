"""Decoding step by step without moving a state per step: recent positions are kept as they were written.

At the length of a sentence the state (d_dot x d_value numbers a head) is larger than the keys and values that it
replaces. So a :class:`Cache` keeps, per position of the current *block*, the key k_j and the vector u_j that the rule
wrote with it (v_j; delta: beta_j (v_j - what k_j held); gated: v_j and its beta_j), beside the state (W, z) of all
blocks before:

    out_t = g W q + sum_j w_j (q.k_j) u_j,   divided by  g z.q + sum_j w_j (q.k_j) + eps  where normalised

with q = phi(q_t), k_j = phi(k_j), features divided by their sums where the rule asks for it, w_j = g = 1, and for the
gated rule w_j = beta_j times the product of all later 1 - beta, g that product over the block. Equal to the operators
of :mod:`.fast_weights` to rounding; ``backend="reference"`` has no such form and decodes by the operator itself.

A full block is folded into the state, so memory is bounded however long the decoding. Which side is cheaper is one
rule, :func:`longest_block`.

Hypotheses are rows of tables: ``ancestors[r, j]`` says in which row of storage position j of row r was written,
``rows[r]`` which row of the state (or of a source that several rows share) it reads. Reordering composes these tables
and moves nothing else.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from ..feature_maps import FeatureMap
from . import decoding_chunked, decoding_native, fast_weights
from .backends import choose, count
from .call import FastWeights, Rule, state_type


class DecodingBackend(Protocol):
    """What a module that decodes offers; ``decoding`` is the :class:`Decoding` that asks."""

    def unsupported_reasons(self, decoding, x: Tensor) -> list[str]:
        """Why it cannot serve this site with keys like x; empty when it can."""

    def cached_type(self, x: Tensor) -> torch.dtype:
        """The type of a cache for keys like x."""

    def decode(self, decoding, cache, q, k=None, v=None, beta=None, key_padding_mask=None) -> Tensor:
        """Writes k, v and beta behind the block, if given, and reads q after each; ``cache.count`` stays."""

    def fold(self, decoding, cache) -> FastWeights | tuple[Tensor, Tensor | None]:
        """The state (W, z) after the block, a row for every hypothesis."""


IMPLEMENTATIONS: dict[str, DecodingBackend] = {"native": decoding_native, "chunked": decoding_chunked}

# A block that follows a folded one is read in addition to the state, so it is kept short.
LATER_BLOCK = 32
_SHORTEST_BLOCK, _LONGEST_BLOCK = 32, 128
_FIRST_CAPACITY = 16


def longest_block(d_dot: int, d_cached: int, d_value: int) -> int:
    """Positions up to which keys and written vectors are cheaper to read than the state, within 32..128.

    They cost d_cached + d_value numbers a position, the state d_dot d_value: with raw keys of d_value numbers the two
    sides meet at d_dot / 2. Beyond 128 the products with so many features cost more than reading the state.
    """
    return min(max(d_dot * d_value // (d_cached + d_value), _SHORTEST_BLOCK), _LONGEST_BLOCK)


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)  # a call that does nothing costs as much as a small operation


@dataclass
class Cache:
    """What was written so far. R rows (hypotheses) read from N rows of storage; C is the capacity of the block.

    Attributes:
        keys: (C, N, H, d_cached): the normalised features; where phi(c x) = c^n phi(x) and x is narrower, the key
            times the n-th root of what normalises its features, of which phi is then the normalised features.
        values: (C, N, H, d_value), the vectors u_j.
        strengths: (C, N, H), beta_j of the gated rule, else None.
        ancestors: (R, C) int32, or None where position j of row r is that of ``rows[r]``: a shared source.
        rows: (R,) int32.
        count: positions in the block.
        W, z: the state of the blocks before, (N', H, d_dot, d_value) and (N', H, d_dot), or None.
        projection: (d_key, m) of FAVOR+, else None.
    """

    keys: Tensor
    values: Tensor
    strengths: Tensor | None
    ancestors: Tensor | None
    rows: Tensor
    count: int = 0
    W: Tensor | None = None
    z: Tensor | None = None
    projection: Tensor | None = None

    def reorder(self, order: Tensor) -> None:
        """Row i becomes the old row order[i]; any length."""
        if self.ancestors is not None:
            self.ancestors = self.ancestors.index_select(0, order)
        if self.ancestors is None or self.W is not None:
            self.rows = self.rows.index_select(0, order)

    @property
    def size(self) -> int:
        """Numbers held."""
        tensors = (self.keys, self.values, self.strengths, self.ancestors, self.rows, self.W, self.z)
        return sum(x.numel() for x in tensors if x is not None)


@dataclass(frozen=True)
class Decoding:
    """One attention site that decodes: what stays the same from step to step. Options as in :mod:`.fast_weights`.

    Inputs are (rows, positions, heads, width) and nothing is differentiated. Half precision is computed in float32; it
    is cached so too, but for the CUDA kernels, whose time is that of reading the cache: they keep it as it is, and
    states in float32. A cache is continued once: steps write into its tensors.
    """

    rule: Rule
    feature_map: FeatureMap | None
    normalize_features: bool
    normalize_output: bool
    eps: float = 1e-6
    backend: str = "auto"

    def step(
        self,
        cache: Cache | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Writes the T positions of k, v (R, T, H, d) one after the other, and reads each with q after its write.

        Returns out (R, T, H, d_value) in v's dtype and the continued cache; the first step is given None.

        Cost a position, row and head: n (d_dot + d_value) products and n (d_cached + d_value) numbers read for n
        positions in the block, plus d_dot d_value of each once there is a state.
        """
        dtype = v.dtype
        if cache is not None:
            implementation, (q, k, v), beta = self._prepared(cache.keys.dtype, (q, k, v), beta)
        else:
            implementation, (q, k, v), beta = self._prepared(None, (q, k, v), beta)
            cache = self._empty(k, v, _FIRST_CAPACITY)
            cache.ancestors = torch.zeros(k.shape[0], _FIRST_CAPACITY, dtype=torch.int32, device=k.device)
        length = q.shape[1]
        if length == 1 and cache.count < cache.keys.shape[0] and k.shape[0] <= cache.keys.shape[1]:
            out = implementation.decode(self, cache, q, k, v, beta, key_padding_mask)
            cache.count += 1
        else:
            outputs, first = [], 0
            while first < length:
                room = self._make_room(cache, length - first, k.shape[0], implementation)
                part = slice(first, first + room)
                outputs.append(
                    implementation.decode(
                        self, cache, q[:, part], k[:, part], v[:, part], None if beta is None else beta[:, part],
                        None if key_padding_mask is None else key_padding_mask[:, part],
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
        beta: Tensor | None,
        key_padding_mask: Tensor | None,
        rows: Tensor,
    ) -> Cache:
        """Writes a source k, v (N, S, H, d) as a whole, to be read by row r from source ``rows[r]`` (R, int32).

        Sources up to :func:`longest_block` stay keys and written vectors, longer ones become a state.
        """
        implementation, (k, v), beta = self._prepared(None, (k, v), beta)
        sources = k.shape[1]
        if sources > longest_block(self.d_dot(k), self.d_cached(k), v.shape[-1]):
            cache = self._empty(k, v, 0)
            cache.W, cache.z = self._state_of(k, v, beta, key_padding_mask)
        else:
            cache = self._empty(k, v, sources)
            cache.ancestors = torch.empty(k.shape[0], sources, dtype=torch.int32, device=k.device)
            # The queries do not matter: written vectors do not depend on them.
            implementation.decode(self, cache, k, k, v, beta, key_padding_mask)
            cache.ancestors, cache.count = None, sources
        cache.rows = rows
        return cache

    def read(self, cache: Cache, q: Tensor) -> Tensor:
        """out (R, T, H, d_value), in q's dtype, of q (R, T, H, d_key) after everything in the cache."""
        implementation, (x,), _ = self._prepared(cache.keys.dtype, (q,), None)
        return implementation.decode(self, cache, x).to(q.dtype)

    def d_dot(self, k: Tensor) -> int:
        return k.shape[-1] if self.feature_map is None else self.feature_map.d_dot

    def d_cached(self, k: Tensor) -> int:
        return k.shape[-1] if self.keeps_keys else self.d_dot(k)

    @property
    def keeps_keys(self) -> bool:
        """Whether the cache holds keys, of which phi makes the features when they are read; else the features."""
        phi = self.feature_map
        return phi is not None and phi.homogeneity is not None and phi.non_negative and phi.d_dot > phi.d_key

    def features(self, x: Tensor) -> Tensor:
        """phi of x (R, T, H, d_key), before any normalisation."""
        phi = self.feature_map
        return x if phi is None else phi(x.transpose(1, 2)).transpose(1, 2).to(x.dtype)

    def _prepared(self, dtype: torch.dtype | None, inputs: tuple[Tensor, ...], beta: Tensor | None):
        """Who serves and what it is given: inputs in the cache's type (None: there is no cache yet), beta as states."""
        widest = dtype or reduce(torch.promote_types, [x.dtype for x in inputs])
        first = _as(inputs[0], widest)
        name = choose(f"decoding with the {self.rule} rule", self.backend, IMPLEMENTATIONS, self, first)
        count(name, first)
        implementation = IMPLEMENTATIONS[name]
        dtype = dtype or implementation.cached_type(first)
        return implementation, [_as(x, dtype) for x in inputs], None if beta is None else _as(beta, state_type(dtype))

    def _empty(self, k: Tensor, v: Tensor, capacity: int) -> Cache:
        count, _, heads, d_value = v.shape
        projection = None if self.feature_map is None else self.feature_map.kernel_options().projection
        return Cache(
            keys=v.new_empty(capacity, count, heads, self.d_cached(k)),
            values=v.new_empty(capacity, count, heads, d_value),
            strengths=v.new_empty(capacity, count, heads) if self.rule == "gated" else None,
            ancestors=None,
            rows=torch.arange(count, dtype=torch.int32, device=v.device),
            projection=None if projection is None else projection.to(state_type(v.dtype)).T.contiguous(),
        )

    def _make_room(self, cache: Cache, wanted: int, rows: int, implementation: DecodingBackend) -> int:
        """Room for some of the wanted positions of so many rows: how many fit before the block is full."""
        capacity, stored, _, d_cached = cache.keys.shape
        d_value = cache.values.shape[-1]
        if cache.W is None:
            d_dot = d_cached if self.feature_map is None else self.feature_map.d_dot
            longest = longest_block(d_dot, d_cached, d_value)
        else:
            longest = LATER_BLOCK
        if cache.count >= longest:
            cache.W, cache.z = implementation.fold(self, cache)
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
        """New storage for so many positions and rows, with the positions of the block in it."""

        def resized(x: Tensor) -> Tensor:
            larger = x.new_empty(capacity, rows, *x.shape[2:])
            larger[: cache.count, : x.shape[1]] = x[: cache.count]
            return larger

        if (capacity, rows) == tuple(cache.keys.shape[:2]):
            return
        cache.keys, cache.values = resized(cache.keys), resized(cache.values)
        cache.strengths = None if cache.strengths is None else resized(cache.strengths)
        ancestors = cache.ancestors.new_zeros(cache.ancestors.shape[0], capacity)
        ancestors[:, : cache.count] = cache.ancestors[:, : cache.count]
        cache.ancestors = ancestors

    def _state_of(self, k: Tensor, v: Tensor, beta: Tensor | None, key_padding_mask: Tensor | None) -> FastWeights:
        operator = getattr(fast_weights, f"{self.rule}_rule")
        _, state = operator(
            k[:, :0], k, v, *(() if beta is None else (beta,)), feature_map=self.feature_map, causal=False,
            key_padding_mask=key_padding_mask, normalize_features=self.normalize_features,
            normalize_output=self.normalize_output, eps=self.eps, backend=self.backend, return_state=True,
        )  # fmt: skip
        return state

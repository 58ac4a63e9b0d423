"""Decodes step by step with a window, from a ring of recent positions and a lazy form of all earlier ones."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..feature_maps import FeatureMap
from .window import Window, with_ones


@dataclass
class Cache:
    """What hypotheses have written so far; R rows of them, in storage of N rows.

    Position t of row r lies in entry t modulo w of the ring, in the row of storage that places[r, entry] tells.
    Reordering hypotheses moves these numbers only.

    Attributes:
        kv: (w, N, H, 2 d_key), keys and values side by side.
        places: (R, w) int32, entry N + row.
        absent: (R, w), True at pads; None if there are none.
        count: positions written.
        far: what has left the window.
    """

    kv: Tensor
    places: Tensor
    absent: Tensor | None
    count: int = 0
    far: Any = None

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; ``order`` may have any length."""
        self.places = self.places.index_select(0, order)
        if self.absent is not None:
            self.absent = self.absent.index_select(0, order)
        if self.far is not None:
            self.far.reorder(order)
        if len(order) > self.kv.shape[1]:  # there is no room for so many rows
            self.kv = self.stored().index_select(0, self.places.T.flatten()).view(-1, len(order), *self.kv.shape[2:])
            self.places = self._every_place()

    @classmethod
    def empty(cls, size: int, k: Tensor) -> "Cache":
        """For a window of ``size`` positions and keys like k (R, 1, H, d_key)."""
        found = cls(k.new_empty(size, len(k), k.shape[2], 2 * k.shape[3]), k.new_empty(0, dtype=torch.int32), None)
        found.places = found._every_place()
        return found

    def _every_place(self) -> Tensor:
        size, rows = self.kv.shape[:2]
        return torch.arange(size * rows, dtype=torch.int32, device=self.kv.device).view(size, rows).T.contiguous()

    def stored(self) -> Tensor:
        """The ring as rows (w N, H, 2 d_key)."""
        return self.kv.flatten(0, 1)


@dataclass(frozen=True)
class Decoding:
    """Decodes with a window, lazily before it; has the interface of :class:`ops.Decoding`.

    Attributes:
        window: the site's.
        feature_map: phi of keys.
        query_map: phi of queries.
        far: decodes what has left the window, with the sum rule and without normalisation.
    """

    window: Window
    feature_map: FeatureMap
    query_map: FeatureMap
    far: ops.Decoding

    def step(
        self, cache: Cache | None, q: Tensor, k: Tensor, v: Tensor, *, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Cache]:
        """Writes the T positions of k, v (R, T, H, d_key), and reads with q after each: out, and the cache."""
        cache = cache or Cache.empty(self.window.size, k[:, :1])
        with torch.autocast(q.device.type, enabled=False):
            steps = zip(*(x.split(1, 1) for x in (q, k, v)), strict=True)
            pads = [None] * q.shape[1] if key_padding_mask is None else key_padding_mask.unbind(1)
            read = [self._step(cache, *step, pad) for step, pad in zip(steps, pads, strict=True)]
        return (read[0] if len(read) == 1 else torch.cat(read, 1)).to(v.dtype), cache

    def _step(self, cache: Cache, q: Tensor, k: Tensor, v: Tensor, pad: Tensor | None) -> Tensor:
        size, d_key, rows = self.window.size, k.shape[3], len(k)
        entry = cache.count % size
        sums = None
        if cache.count >= size:
            old_k, old_v = cache.stored().index_select(0, cache.places[:, entry]).unsqueeze(1).split(d_key, -1)
            absent = None if cache.absent is None else cache.absent[:, entry : entry + 1]
            features = self._prepared(q, self.query_map), self._prepared(old_k, self.feature_map)
            sums, cache.far = self.far.step(cache.far, *features, with_ones(old_v), key_padding_mask=absent)
        cache.kv[entry, :rows, :, :d_key] = k[:, 0]
        cache.kv[entry, :rows, :, d_key:] = v[:, 0]
        first = entry * cache.kv.shape[1]
        cache.places[:, entry] = torch.arange(first, first + rows, dtype=torch.int32, device=k.device)
        if pad is not None and cache.absent is None:
            cache.absent = torch.zeros_like(cache.places, dtype=torch.bool)
        if cache.absent is not None:
            cache.absent[:, entry] = False if pad is None else pad
        cache.count += 1
        count = min(cache.count, size)
        stored = cache.stored().unsqueeze(1)
        return self.window.read(
            q,
            stored[..., :d_key],
            stored[..., d_key:],
            sums,
            key_padding_mask=None if cache.absent is None else cache.absent[:, :count],
            places=cache.places[:, :count],
        )

    def _prepared(self, x: Tensor, phi: FeatureMap) -> Tensor:
        """Finished features of a map that the kernels do not know, else what its part in the operator takes."""
        x = x.transpose(1, 2)
        return (phi(x) if self.far.feature_map is None else phi.prepare(x)).transpose(1, 2)

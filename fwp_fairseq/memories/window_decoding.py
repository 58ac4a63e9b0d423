"""Decodes step by step with a window: a ring of the latest positions, and ``ops.Decoding`` for all earlier ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..numerics import state_type, without_autocast
from ..ops.decoding_native import fold

if TYPE_CHECKING:
    from .window import Window, WindowState


@dataclass
class WindowCache:
    """Positions written so far by R hypotheses, in storage of N rows.

    Position t of row r lies in entry t modulo w of the ring, in the row of storage that places[r, entry] tells.
    Reordering hypotheses moves these numbers only.

    Attributes:
        kv: (w, N, H, 2 d_key), keys and values side by side.
        places: (R, w) int32, entry N + row.
        count: positions written.
        far: what has left the window, in the form of :class:`ops.Decoding`.
    """

    kv: Tensor
    places: Tensor
    count: int = 0
    far: Any = None

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; ``order`` may have any length."""
        self.places = self.places.index_select(0, order)
        if self.far is not None:
            self.far.reorder(order)
        if len(order) > self.kv.shape[1]:  # there is no room for so many rows
            self.kv = self.stored().index_select(0, self.places.T.flatten()).view(-1, len(order), *self.kv.shape[2:])
            self.places = self._every_place()

    @classmethod
    def empty(cls, size: int, k: Tensor) -> "WindowCache":
        """Makes an empty cache for a window of ``size`` positions and keys like k (R, 1, H, d_key)."""
        found = cls(k.new_empty(size, len(k), k.shape[2], 2 * k.shape[3]), k.new_empty(0, dtype=torch.int32))
        found.places = found._every_place()
        return found

    def _every_place(self) -> Tensor:
        size, rows = self.kv.shape[:2]
        return torch.arange(size * rows, dtype=torch.int32, device=self.kv.device).view(size, rows).T.contiguous()

    def stored(self) -> Tensor:
        """The ring as rows (w N, H, 2 d_key)."""
        return self.kv.flatten(0, 1)


def with_ones(v: Tensor) -> Tensor:
    """v with a column of ones, so that the denominator is read with the values.

    The sums have this type; not divided yet, they grow with the text, so half precision has no room for them.
    """
    return F.pad(v.to(state_type(v.dtype)), (0, 1), value=1.0)


def step(window: "Window", cache: WindowCache | None, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, WindowCache]:
    """Writes the T positions of k, v (R, T, H, d_key), and reads with q after each: out, and the cache."""
    cache = cache or WindowCache.empty(window.size, k[:, :1])
    with without_autocast(q):
        read = [_step(window, cache, *one) for one in zip(*(x.split(1, 1) for x in (q, k, v)), strict=True)]
    return (read[0] if len(read) == 1 else torch.cat(read, 1)).to(v.dtype), cache


def _step(window: "Window", cache: WindowCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    size, d_key, rows = window.size, k.shape[3], len(k)
    entry = cache.count % size
    sums = None
    if cache.count >= size:
        old_k, old_v = cache.stored().index_select(0, cache.places[:, entry]).unsqueeze(1).split(d_key, -1)
        q_far, k_far = window.features.queries(q), window.features.keys(old_k)
        sums, cache.far = window.far.step(cache.far, q_far, k_far, with_ones(old_v))
    cache.kv[entry, :rows, :, :d_key] = k[:, 0]
    cache.kv[entry, :rows, :, d_key:] = v[:, 0]
    first = entry * cache.kv.shape[1]
    cache.places[:, entry] = torch.arange(first, first + rows, dtype=torch.int32, device=k.device)
    cache.count += 1
    stored = cache.stored().unsqueeze(1)
    places = cache.places[:, : min(cache.count, size)]
    return window.read_window(q, stored[..., :d_key], stored[..., d_key:], sums, places=places)


def state_of(window: "Window", cache: WindowCache) -> "WindowState":
    """The state after what hypotheses have written; its rows can be continued with different lengths."""
    count, size = min(cache.count, window.size), window.size
    found = window.nothing_written(len(cache.places), cache.kv)
    entries = [t % size for t in range(cache.count - count, cache.count)]  # the oldest first
    places = cache.places[:, entries]
    recent = cache.stored().index_select(0, places.flatten()).unflatten(0, places.shape).to(found.k.dtype)
    found.k[:, size - count :], found.v[:, size - count :] = recent.chunk(2, -1)
    found.present[:, size - count :] = 1
    return found if cache.far is None else found._replace(W=fold(window.far, cache.far)[0].to(found.W.dtype))

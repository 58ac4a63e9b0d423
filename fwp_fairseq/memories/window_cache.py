"""Holds a window while hypotheses are decoded: a ring of the latest positions, and a cache of all earlier ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.decoding import Cache


@dataclass
class WindowCache:
    """Positions written so far by R hypotheses, in storage of N rows.

    Position t of row r lies in entry t modulo w of the ring, in the row of storage places[r, entry]. Reordering
    hypotheses moves these numbers only.

    Attributes:
        kv: (w, N, H, 2 d_key), keys and values side by side.
        places: (R, w) int32, entry * N + row.
        count: positions written.
        far: the cache of the positions before the window.
    """

    kv: Tensor
    places: Tensor
    count: int = 0
    far: Cache | None = None

    @classmethod
    def empty(cls, size: int, k: Tensor) -> "WindowCache":
        """Makes an empty cache for a window of ``size`` positions and keys like k (R, 1, H, d_key)."""
        cache = cls(k.new_empty(size, len(k), k.shape[2], 2 * k.shape[3]), k.new_empty(0, dtype=torch.int32))
        cache.places = cache._every_place()
        return cache

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; ``order`` may have any length."""
        self.places = self.places.index_select(0, order)
        if self.far is not None:
            self.far.reorder(order)
        if len(order) > self.kv.shape[1]:  # there is no room for so many rows
            self.kv = self._stored().index_select(0, self.places.T.flatten()).view(-1, len(order), *self.kv.shape[2:])
            self.places = self._every_place()

    def _every_place(self) -> Tensor:
        size, rows = self.kv.shape[:2]
        return torch.arange(size * rows, dtype=torch.int32, device=self.kv.device).view(size, rows).T.contiguous()

    def _stored(self) -> Tensor:
        """Returns the ring as rows (w N, H, 2 d_key)."""
        return self.kv.flatten(0, 1)

    def oldest(self) -> tuple[Tensor, ...] | None:
        """Returns k and v (R, 1, H, d_key) of the position that the next write evicts from a full window, or None."""
        size = len(self.kv)
        if self.count < size:
            return None
        oldest = self._stored().index_select(0, self.places[:, self.count % size])
        return oldest.unsqueeze(1).chunk(2, -1)

    def write(self, k: Tensor, v: Tensor) -> None:
        """Writes one position (R, 1, H, d_key)."""
        size, stored = self.kv.shape[:2]
        entry, rows, d_key = self.count % size, len(k), k.shape[3]
        self.kv[entry, :rows, :, :d_key] = k[:, 0]
        self.kv[entry, :rows, :, d_key:] = v[:, 0]
        first = entry * stored
        self.places[:, entry] = torch.arange(first, first + rows, dtype=torch.int32, device=k.device)
        self.count += 1

    def window(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns storage of keys and of values (w N, 1, H, d_key), and the places of the window in it."""
        return *self._stored().unsqueeze(1).chunk(2, -1), self.places[:, : min(self.count, len(self.kv))]

    def latest(self) -> Tensor:
        """Returns keys and values of the window, (R, L, H, 2 d_key), the oldest first."""
        size = len(self.kv)
        places = self.places[:, [t % size for t in range(max(self.count - size, 0), self.count)]]
        return self._stored().index_select(0, places.flatten()).unflatten(0, places.shape)

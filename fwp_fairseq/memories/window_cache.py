"""Holds a window while hypotheses are decoded: a ring of the latest positions, and a cache of all earlier ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.decoding import Cache


@dataclass
class WindowCache:
    """Positions written so far by R hypotheses, in storage of N rows.

    Position t of row r lies in entry t modulo w of the ring, at place places[r, entry]. Reordering hypotheses moves
    these numbers only. Pads take no place in the ring, so once there are pads the next entries of the rows differ: then
    each row has storage of its own, and reordering copies it.

    Attributes:
        kv: (w, N, H, 2 d_key), keys and values side by side.
        places: (R, w) int32, entry * N + the row of storage.
        count: number of positions written, pads included.
        written: (R,), the number of those that are not pads; None until a pad is written.
        far: the cache of the positions before the window.
    """

    kv: Tensor
    places: Tensor
    count: int = 0
    written: Tensor | None = None
    far: Cache | None = None

    @classmethod
    def empty(cls, size: int, k: Tensor) -> "WindowCache":
        """Returns an empty cache for a window of ``size`` positions and keys like k (R, 1, H, d_key)."""
        cache = cls(k.new_zeros(size, len(k), k.shape[2], 2 * k.shape[3]), k.new_empty(0, dtype=torch.int32))
        cache.places = cache._every_place()
        return cache

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; ``order`` may have any length."""
        self.places = self.places.index_select(0, order)
        if self.far is not None:
            self.far.reorder(order)
        if self.written is not None:
            self.written = self.written.index_select(0, order)
        if self.written is not None or len(order) > self.kv.shape[1]:  # there is no room for so many rows
            self._copy()

    def move_apart(self) -> None:
        """Gives each row storage of its own, and from then on counts the positions that it writes."""
        if self.written is None:
            self._copy()
            self.written = torch.full((len(self.places),), self.count, device=self.kv.device)

    def _copy(self) -> None:
        rows = len(self.places)
        self.kv = self._stored().index_select(0, self.places.T.flatten()).view(-1, rows, *self.kv.shape[2:])
        self.places = self._every_place()

    def _every_place(self) -> Tensor:
        size, rows = self.kv.shape[:2]
        return torch.arange(size * rows, dtype=torch.int32, device=self.kv.device).view(size, rows).T.contiguous()

    def _stored(self) -> Tensor:
        """Returns the ring as rows (w N, H, 2 d_key)."""
        return self.kv.flatten(0, 1)

    def oldest(self, pads: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Returns k and v (R, 1, H, d_key) of the position that the next write evicts; None if no window is full.

        The third tensor, (R, 1), is True for rows from which nothing is evicted; None if there are no such rows.
        """
        size = len(self.kv)
        if self.count < size:
            return None
        if self.written is None:
            oldest, stays = self._stored().index_select(0, self.places[:, self.count % size]), None
        else:
            oldest, stays = self.kv[self._next()], self.written[:, None] < size
            stays = stays if pads is None else stays | pads
        return *oldest.unsqueeze(1).chunk(2, -1), stays

    def _next(self) -> tuple[Tensor, Tensor]:
        """Returns the entry, and the row of storage, of each row's next position, once rows are apart."""
        return self.written % len(self.kv), torch.arange(len(self.written), device=self.kv.device)

    def write(self, k: Tensor, v: Tensor, pads: Tensor | None) -> None:
        """Writes one position (R, 1, H, d_key), where ``pads`` (R, 1) is not True."""
        size, stored = self.kv.shape[:2]
        if self.written is not None:
            at, kv = self._next(), torch.cat([k, v], -1)[:, 0].to(self.kv.dtype)
            self.kv[at] = kv if pads is None else torch.where(pads[..., None], self.kv[at], kv)
            self.written = self.written + (1 if pads is None else ~pads[:, 0])
            self.count += 1
            return
        entry, rows, d_key = self.count % size, len(k), k.shape[3]
        self.kv[entry, :rows, :, :d_key] = k[:, 0]
        self.kv[entry, :rows, :, d_key:] = v[:, 0]
        first = entry * stored
        self.places[:, entry] = torch.arange(first, first + rows, dtype=torch.int32, device=k.device)
        self.count += 1

    def window(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns storage of keys and of values (w N, 1, H, d_key), and the places of the window in it, (R, L).

        The last tensor, (R, L), is True at places without a position; None if there are none.
        """
        places, absent = self.places[:, : min(self.count, len(self.kv))], None
        if self.written is not None:
            absent = torch.arange(places.shape[1], device=places.device) >= self.written[:, None]
        return *self._stored().unsqueeze(1).chunk(2, -1), places, absent

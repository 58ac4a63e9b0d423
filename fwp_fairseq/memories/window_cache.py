"""The cache of a window in decoding: a ring buffer of the latest positions, and a cache of all earlier ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.decoding import Cache


@dataclass
class WindowCache:
    """Stores the positions written so far by R hypotheses, in N rows of storage.

    Position t of row r is in entry t modulo w of the ring, at place places[r, entry]. Reordering hypotheses only moves
    these indices. The ring stores no padding, so once there is padding, the rows no longer write to the same entry.
    From then on, each row has separate storage, which reordering copies.

    Attributes:
        kv: (w, N, H, 2 d_key), keys and values side by side.
        places: (R, w) int32, entry * N + the row of storage.
        count: the number of positions written, including padding.
        token_counts: (R,), the number of positions without padding; None until padding is written.
        far: the cache of the positions before the window.
    """

    kv: Tensor
    places: Tensor
    count: int = 0
    token_counts: Tensor | None = None
    far: Cache | None = None

    @classmethod
    def empty(cls, size: int, k: Tensor) -> "WindowCache":
        """Returns an empty cache for a window of ``size`` positions and keys like k (R, 1, H, d_key)."""
        cache = cls(k.new_zeros(size, k.shape[0], k.shape[2], 2 * k.shape[3]), k.new_empty(0, dtype=torch.int32))
        cache.places = cache._every_place()
        return cache

    def reorder(self, order: Tensor) -> None:
        """Replaces row i by row order[i]; ``order`` may have any length."""
        self.places = self.places.index_select(0, order)
        if self.far is not None:
            self.far.reorder(order)
        if self.token_counts is not None:
            self.token_counts = self.token_counts.index_select(0, order)
        if self.token_counts is not None or len(order) > self.kv.shape[1]:  # there is no room for so many rows
            self._copy()

    def move_apart(self) -> None:
        """Gives each row separate storage, and starts to count the positions that each row writes."""
        if self.token_counts is None:
            self._copy()
            self.token_counts = torch.full((len(self.places),), self.count, device=self.kv.device)

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

        The third tensor, (R, 1), is True for rows that evict nothing; None if there are no such rows.
        """
        size = len(self.kv)
        if self.count < size:
            return None
        if self.token_counts is None:
            oldest, stays = self._stored().index_select(0, self.places[:, self.count % size]), None
        else:
            oldest, stays = self.kv[self._next()], self.token_counts[:, None] < size
            stays = stays if pads is None else stays | pads
        return *oldest.unsqueeze(1).chunk(2, -1), stays

    def _next(self) -> tuple[Tensor, Tensor]:
        """Returns the entry and the storage row of each row's next position, once the rows have separate storage."""
        return self.token_counts % len(self.kv), torch.arange(len(self.token_counts), device=self.kv.device)

    def write(self, k: Tensor, v: Tensor, pads: Tensor | None) -> None:
        """Writes one position (R, 1, H, d_key), except in rows in which ``pads`` (R, 1) is True."""
        size, stored = self.kv.shape[:2]
        if self.token_counts is not None:
            at, kv = self._next(), torch.cat([k, v], -1)[:, 0].to(self.kv.dtype)
            self.kv[at] = kv if pads is None else torch.where(pads[..., None], self.kv[at], kv)
            self.token_counts = self.token_counts + (1 if pads is None else ~pads[:, 0])
            self.count += 1
            return
        entry, rows, d_key = self.count % size, k.shape[0], k.shape[3]
        self.kv[entry, :rows, :, :d_key] = k[:, 0]
        self.kv[entry, :rows, :, d_key:] = v[:, 0]
        first = entry * stored
        self.places[:, entry] = torch.arange(first, first + rows, dtype=torch.int32, device=k.device)
        self.count += 1

    def window(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns the storage of keys and of values, (w N, 1, H, d_key), and the places of the window in it, (R, L).

        The last tensor, (R, L), is True at places without a position; None if there are no such places.
        """
        places, absent = self.places[:, : min(self.count, len(self.kv))], None
        if self.token_counts is not None:
            absent = torch.arange(places.shape[1], device=places.device) >= self.token_counts[:, None]
        return *self._stored().unsqueeze(1).chunk(2, -1), places, absent

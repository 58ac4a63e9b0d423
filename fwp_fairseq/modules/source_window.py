"""Restricts softmax cross-attention to a source window around the position that a hypothesis has reached.

A translation follows its source from the first position to the last. With a source window of w positions, a decoding
step of row r therefore reads only the positions

    s_r <= j < s_r + w,   s_r = p_r - w / 2, moved so that the window lies within the source,

around its place p_r in the source. Then p_r becomes one plus the mean of these positions, weighted by attention and
averaged over heads. p_r starts at the first token and never moves back. Sources of up to w tokens are read completely.
Training and scoring read everything.
"""

import torch
from torch import Tensor

from .shared_source import SharedSource


class SourceWindow:
    """The keys and values of complete sources, and the place that each row (hypothesis) has reached in them.

    A step reads only the positions in each row's window, so its cost does not depend on the length of the sources. No
    value is read back from the device.

    Args:
        size: w.
        keys, values: (S, N, H, d_key) and (S, N, H, d_value), of N sources with S positions each; S > w.
        pads: (N, S), True at padding before or after the tokens of a source; None if there is none.
        rows: (R,), the source that each row reads.

    Attributes:
        place: (R,), float, the place p_r that each row has reached in its source.
    """

    def __init__(self, size: int, keys: Tensor, values: Tensor, pads: Tensor | None, rows: Tensor):
        self.size, self.keys, self.values, self.rows = size, keys, values, rows
        length, sources = keys.shape[:2]
        tokens = rows.new_ones(sources, length) if pads is None else (~pads).long()
        self._first = tokens.argmax(1)
        self._end = self._first + tokens.sum(1)
        self.place = self._first.index_select(0, rows).float()

    def reorder(self, order: Tensor) -> None:
        """Replaces row i by row order[i]."""
        self.rows, self.place = self.rows.index_select(0, order), self.place.index_select(0, order)

    def near(self) -> tuple[SharedSource, Tensor]:
        """Returns the window of each row, as a separate source, and the positions in it, (R, w)."""
        first, end = (x.index_select(0, self.rows) for x in (self._first, self._end))
        start = (self.place.long() - self.size // 2).minimum(end - self.size).maximum(first)
        position = start[:, None] + torch.arange(self.size, device=start.device)
        length, sources, heads = self.keys.shape[:3]
        at = position.clamp(max=length - 1) * sources + self.rows[:, None]
        at = at[:, None] * heads + torch.arange(heads, device=at.device)[:, None]  # (R, H, w)
        k, v = (x.flatten(0, 2).index_select(0, at.flatten()).unflatten(0, at.shape) for x in (self.keys, self.values))
        return SharedSource(k.mT, v, position >= end[:, None], 1), position

    def advance(self, weights: Tensor, position: Tensor) -> None:
        """Moves the place of each row to one position after the mean position that it attended to, but never back.

        Args:
            weights: (R, H, 1, w), the weights of the latest step.
            position: (R, w), the positions that :meth:`near` returned.
        """
        read = (weights[:, :, 0].mean(1) * position).sum(1) + 1
        self.place = self.place.maximum(read)

"""What a hypothesis reads of its source if softmax cross-attention has a window: a few positions around its place.

A translation goes through its source from the first position to the last. So a step looks for what it needs near the
place of the step before: with a window of w positions, row r reads the positions

    s_r <= j < s_r + w,   s_r = p_r - w / 2, moved so that the window lies within the source,

and then its place p_r is the mean of the positions that it has read, by its weights averaged over heads, plus one; it
never goes back, which would translate a passage twice. At first it is the first token. Sources of up to w tokens are
read whole. Training and scoring read everything.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .shared_source import SharedSource


class SourceWindow:
    """The stretch of each source that rows (hypotheses) read now, and the place of each row.

    Keys and values are kept of a stretch of two windows, or more if rows of the same source are far from each other.
    When a window leaves its stretch, which is about once in w steps, the stretches of all sources are projected anew
    from the encoder's output: on average two positions of each source in a step.

    Args:
        size: w.
        rows: (R,), the number of the source that each row reads.
        pads: (R, S), True at pads; None if there are none.
        length: S.

    Attributes:
        stretch: keys and values, without pads.
        begin: (R,), the position in its source at which the stretch of a row begins.
        first, end: (R,), the first token of each row's source, and one past the last.
        place: (R,), float.
    """

    def __init__(self, size: int, rows: Tensor, pads: Tensor | None, length: int):
        self.size, self.rows = size, rows
        tokens = rows.new_ones(len(rows), length) if pads is None else (~pads.bool()).to(rows)
        self.first = tokens.argmax(1)
        self.end = self.first + tokens.sum(1)
        self.place = self.first.float()
        self.stretch: SharedSource | None = None

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]."""
        self.stretch.reorder(order)
        for name in ("begin", "first", "end", "place"):
            setattr(self, name, getattr(self, name).index_select(0, order))

    def hidden(self, key: Tensor, project: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Moves stretches where it must; returns (R, L), True at positions of the stretch outside of a row's window.

        Args:
            key: (S, R, C), the encoder's output for each row.
            project: takes some of it, (L, N, C), to keys and values as :class:`SharedSource` has them.
        """
        start = (self.place.long() - self.size // 2).minimum(self.end - self.size).maximum(self.first)
        if self.stretch is None or self._leaves(start):
            self._move(start, key, project)
        at = self.begin[:, None] + torch.arange(self.stretch.keys.shape[-1], device=key.device)
        return (at < start[:, None]) | (at >= (start + self.size).minimum(self.end)[:, None])

    def went(self, weights: Tensor) -> None:
        """Takes the weights of the latest step, (H, R, 1, L), to the place of each row."""
        read = weights.mean(0)[:, 0]
        read = self.begin + read @ torch.arange(read.shape[1], device=read.device, dtype=read.dtype) + 1
        self.place = self.place.maximum(read)

    def _leaves(self, start: Tensor) -> bool:
        last = self.begin + self.stretch.keys.shape[-1]
        return bool(((start + self.size).minimum(self.end) > last).any())

    def _move(self, start: Tensor, key: Tensor, project) -> None:
        rows = self.rows if self.stretch is None else self.stretch.rows

        def of_sources(x: Tensor, what: str) -> Tensor:
            return x.new_empty(int(rows.max()) + 1).scatter_reduce(0, rows, x, what, include_self=False)

        low = of_sources(start, "amin")
        reader = of_sources(torch.arange(len(rows), device=rows.device), "amin")
        length = min(key.shape[0], self.size + max(self.size, int((of_sources(start, "amax") - low).max())))
        at = (low[:, None] + torch.arange(length, device=low.device)).clamp(max=key.shape[0] - 1)
        self.stretch = SharedSource(*project(key[at, reader[:, None]].transpose(0, 1)), None, rows)
        self.begin = low[rows]

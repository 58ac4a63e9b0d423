"""Lets softmax cross-attention read a source window: a few positions around the place of the hypothesis.

A translation goes through its source from the first position to the last. So a step reads near the place of the step
before: with a source window of w positions, row r reads the positions

    s_r <= j < s_r + w,   s_r = p_r - w / 2, moved so that the window lies within the source,

Then its place p_r becomes one plus the mean of these positions under its weights, averaged over heads. It never goes
back, which would translate a part twice. It starts at the first token. Sources of up to w tokens are read whole.
Training and scoring read everything.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .shared_source import SharedSource


class SourceWindow:
    """The stretch of each source that rows (hypotheses) read now, and the place of each row.

    Keys and values are kept of a stretch of twice the window, or more if rows of a source are far from each other. When
    a window leaves its stretch, which is about once in w steps, the stretches of all sources are projected anew from
    the encoder's output: on average two positions of each source in a step.

    Args:
        size: w.
        tokens: (R, S), int64, 1 at the tokens of each row's source and 0 at pads.
        beam: how many rows, one after the other, read each source.

    Attributes:
        stretch: keys and values, without pads.
        begin: (R,), the position in its source at which the stretch of a row begins.
        first, end: (R,), the first token of each row's source, and one past the last.
        place: (R,), float.
    """

    def __init__(self, size: int, tokens: Tensor, beam: int):
        self.size, self.beam = size, beam
        self.first = tokens.argmax(1)
        self.end = self.first + tokens.sum(1)
        self.place = self.first.float()
        self.stretch: SharedSource | None = None

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]."""
        self.stretch.reorder(order)
        self.beam = self.stretch.beam
        for name in ("begin", "first", "end", "place"):
            setattr(self, name, getattr(self, name).index_select(0, order))

    def hidden(self, key: Tensor, rows: Tensor, project: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Moves stretches where it must; returns (R, L), True at positions of the stretch outside of a row's window.

        Args:
            key: (S, N', C), the encoder's output.
            rows: (R,), the source in it that each row reads.
            project: takes some of it, (L, N, C), and how many tokens of its source are before each position, (L, N), to
                keys and values as :class:`SharedSource` has them.
        """
        start = (self.place.long() - self.size // 2).minimum(self.end - self.size).maximum(self.first)
        if self.stretch is None or self._leaves(start):
            self._move(start, key, rows, project)
        at = self.begin[:, None] + torch.arange(self.stretch.keys.shape[-1], device=key.device)
        return (at < start[:, None]) | (at >= (start + self.size).minimum(self.end)[:, None])

    def advance(self, weights: Tensor) -> None:
        """Moves each hypothesis to its mean attended position, by the weights of the latest step, (H, R, 1, L)."""
        read = weights.mean(0)[:, 0]
        read = self.begin + read @ torch.arange(read.shape[1], device=read.device, dtype=read.dtype) + 1
        self.place = self.place.maximum(read)

    def _leaves(self, start: Tensor) -> bool:
        last = self.begin + self.stretch.keys.shape[-1]
        return bool(((start + self.size).minimum(self.end) > last).any())

    def _move(self, start: Tensor, key: Tensor, rows: Tensor, project) -> None:
        low, high = start.view(-1, self.beam).aminmax(dim=1)
        length = min(key.shape[0], self.size + max(self.size, int((high - low).max())))
        at = (low + torch.arange(length, device=low.device)[:, None]).clamp(max=key.shape[0] - 1)
        before = at - self.first[:: self.beam]
        self.stretch = SharedSource(*project(key[at, rows[:: self.beam]], before), None, self.beam)
        self.begin = low.repeat_interleave(self.beam)

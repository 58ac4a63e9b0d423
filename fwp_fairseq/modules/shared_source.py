"""Keys and values of sources that several hypotheses read."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class SharedSource:
    """Keys and values of N sources, which R rows (hypotheses) read.

    Attributes:
        keys: (N, H, d_key, S).
        values: (N, H, S, d_value).
        pads: (N, S), True at pads; None if there are none.
        rows: (R,), the number of the source that each row reads.
        together: how many rows, one after the other, read each source; None if not all sources have as many, or if
            their rows are not next to each other.
    """

    keys: Tensor
    values: Tensor
    pads: Tensor | None
    rows: Tensor

    def __post_init__(self):
        self._group()

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; sources that no row reads any more are dropped."""
        rows = self.rows.index_select(0, order)
        if torch.equal(rows, self.rows):  # as in most steps, in which hypotheses of the same source change places
            return
        self.rows = rows
        self._group()

    def _group(self) -> None:
        read, counts = torch.unique_consecutive(self.rows, return_counts=True)
        distinct, places = torch.unique(self.rows, return_inverse=True)
        if len(distinct) < len(self.keys):
            self.keys, self.values = self.keys.index_select(0, distinct), self.values.index_select(0, distinct)
            self.pads = None if self.pads is None else self.pads.index_select(0, distinct)
            self.rows = places
        in_order = len(read) == len(distinct) and bool((read == distinct).all())
        self.together = int(counts[0]) if in_order and len(counts) and bool((counts == counts[0]).all()) else None

"""The keys and values of sources that several hypotheses read."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class SharedSource:
    """The keys and values of N sources, each read by ``beam`` adjacent rows (hypotheses).

    Attributes:
        keys: (N, H, d_key, S).
        values: (N, H, S, d_value).
        pads: (N, S), True at padding; None if there is none.
        beam: the number of adjacent rows that read each source.
    """

    keys: Tensor
    values: Tensor
    pads: Tensor | None
    beam: int

    def reorder(self, order: Tensor) -> Tensor | None:
        """Replaces row i by row order[i]; returns the indices of the sources that are kept, or None if all are.

        On a GPU the values of ``order`` are not read, because that would wait for the GPU. If each source has several
        rows and ``order`` is as long as before, each row is assumed to stay with its source, as
        :meth:`.FwpTransformer.set_beam_size` requires.
        """
        if self.beam == 1:
            kept = order
            # Comparing is cheaper than copying, but on a GPU it would wait for the device.
            if order.device.type == "cpu" and torch.equal(order, torch.arange(len(self.keys))):
                return None
        elif len(order) == len(self.keys) * self.beam:
            return None
        elif len(order) % self.beam == 0:
            kept = order[:: self.beam] // self.beam
        else:
            kept, self.beam = order // self.beam, 1
        self.keys, self.values = self.keys.index_select(0, kept), self.values.index_select(0, kept)
        self.pads = None if self.pads is None else self.pads.index_select(0, kept)
        return kept

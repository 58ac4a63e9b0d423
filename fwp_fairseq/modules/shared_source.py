"""Keys and values of sources that several hypotheses read."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class SharedSource:
    """Keys and values of N sources, each read by ``beam`` rows (hypotheses) that are next to each other.

    Attributes:
        keys: (N, H, d_key, S).
        values: (N, H, S, d_value).
        pads: (N, S), True at pads; None if there are none.
        beam: the number of rows, next to each other, that read each source.
    """

    keys: Tensor
    values: Tensor
    pads: Tensor | None
    beam: int

    def reorder(self, order: Tensor) -> Tensor | None:
        """Makes row i the old row order[i]; returns the numbers of the kept sources, or None if all stay.

        No value is read back from the device. So if several rows read each source and none of them has ended, the order
        is assumed to move rows only within their source, as the call of ``set_beam_size`` promises.
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

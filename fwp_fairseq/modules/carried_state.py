"""Carries fast weights, or the memory of Transformer-XL, from one segment of a text to the next.

A text is cut into streams, one for each batch row, and each stream into segments that are read one after the other. The
state is handed to the model with a batch, as fairseq hands down its incremental state; no module keeps it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

# By number of the layer, the tensors of the state of its attention; softmax layers have none. Rows are the streams of
# one process. Plain tuples, because checkpoints hold them.
States = dict[int, tuple[Tensor | None, ...]]


def changed(states: States, change: Callable[[Tensor], Tensor]) -> States:
    """Returns the states with ``change`` applied to every tensor."""
    return {layer: tuple(None if x is None else change(x) for x in state) for layer, state in states.items()}


@dataclass
class CarriedState:
    """Holds the state of each layer after the latest segment of a set of streams."""

    states: States = field(default_factory=dict)


@dataclass
class Segment:
    """Describes how the decoder reads a batch of segments.

    Attributes:
        state: the state after the earlier segments, which becomes the state after this one; None if every segment is
            read as the beginning of a stream.
        horizon: number of tokens after which a stream begins anew with an empty state; None for never.
    """

    state: CarriedState | None = None
    horizon: int | None = None
    _initial: States | None = None

    def initial(self, offsets: Tensor) -> States:
        """Returns the states before this segment, on the device of ``offsets``; zeros where a stream begins.

        If the segment is read again, as fairseq does after an overflow or when memory ran out, they are the same.

        Args:
            offsets: (B,), tokens of each stream before this segment.
        """
        if self.state is None:
            return {}
        if self._initial is None:
            self._initial = self.state.states
        begins = (offsets if self.horizon is None else offsets % self.horizon) == 0

        def zeroed(x: Tensor) -> Tensor:  # a state from a checkpoint is on the CPU
            return x.to(begins.device).masked_fill(begins.view(-1, *[1] * (x.dim() - 1)), 0)

        return changed(self._initial, zeroed)

    def finish(self, states: States) -> None:
        """Stores the states at the end of this segment. The gradient is cut here."""
        if self.state is not None:
            self.state.states = changed(states, Tensor.detach)

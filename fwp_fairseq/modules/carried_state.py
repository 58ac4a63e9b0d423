"""Carries fast weights, or the memory of Transformer-XL, from one segment of a text to the next.

A text is cut into streams, one for each batch row, and each stream into segments that are read one after another. The
state is passed to the model with each batch, as fairseq passes its incremental state; no module stores it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

# For each layer number, the tensors of its attention state; softmax layers have none. Rows are the streams of one
# process. These are plain tuples, because checkpoints contain them.
States = dict[int, tuple[Tensor | None, ...]]


def changed(states: States, change: Callable[[Tensor], Tensor]) -> States:
    """Returns the states with ``change`` applied to every tensor."""
    return {layer: tuple(None if x is None else change(x) for x in state) for layer, state in states.items()}


@dataclass
class CarriedState:
    """The state of each layer after the latest segment of a set of streams."""

    states: States = field(default_factory=dict)


@dataclass
class Segment:
    """Describes how the decoder reads a batch of segments.

    Attributes:
        state: the state after the previous segments, which is replaced by the state after this one; None if every
            segment starts from an empty state.
        horizon: number of tokens after which the state of a stream is emptied; None for never.
    """

    state: CarriedState | None = None
    horizon: int | None = None
    _initial: States | None = None

    def initial(self, offsets: Tensor) -> States:
        """Returns the states before this segment, on the device of ``offsets``; zeros where a stream begins.

        If fairseq reads the segment again, after an overflow or when memory ran out, the states are the same.

        Args:
            offsets: (B,), number of tokens of each stream before this segment.
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
        """Stores the states at the end of this segment, without their gradients."""
        if self.state is not None:
            self.state.states = changed(states, Tensor.detach)

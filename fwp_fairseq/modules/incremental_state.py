"""Stores what attention keeps between two decoding steps in fairseq's incremental state.

The buffer of a module is a flat dict. In attention with fast weights, the entry ``held`` is the state or cache from
which the memory continues; in softmax cross-attention, the entry ``source`` is the source. All other entries are
tensors.
"""

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor

from ..memories.memory import Held
from ..ops.state import select
from .shared_source import SharedSource
from .source_window import SourceWindow

_KEY = "attn_state"
_ROWS = "rows"
Entry = Tensor | Held | SharedSource | SourceWindow
Buffer = dict[str, Entry]


def load(module: FairseqIncrementalState, incremental_state: dict | None) -> Buffer:
    """Returns the buffer of a module, which is empty before the first step."""
    return module.get_incremental_state(incremental_state, _KEY) or {}


def store(module: FairseqIncrementalState, incremental_state: dict, buffer: Buffer) -> dict:
    """Stores the buffer of a module; returns the incremental state."""
    return module.set_incremental_state(incremental_state, _KEY, buffer)


def reorder(module: FairseqIncrementalState, incremental_state: dict, new_order: Tensor) -> dict:
    """Replaces row i of a module's buffer by row new_order[i], because beam search moves and drops hypotheses."""
    if buffer := load(module, incremental_state):
        store(module, incremental_state, {name: _reordered(x, new_order) for name, x in buffer.items()})
    return incremental_state


def _reordered(x: Entry, order: Tensor) -> Entry:
    if isinstance(x, Tensor):
        return x.index_select(0, order)
    if isinstance(x, tuple):
        return select(x, order)
    x.reorder(order)
    return x


def set_source_rows(incremental_state: dict, rows: Tensor) -> None:
    """Tells cross-attention which source each row (hypothesis) reads, before it writes the sources.

    Args:
        rows: (R / beam, beam), int64. Row i * beam + j reads source ``rows[i, j]``. All entries of ``rows[i]`` are
            equal. Beam search must keep the hypotheses of a source adjacent.
    """
    incremental_state[_ROWS] = {_ROWS: rows}  # as in fairseq, each entry of the state is a dict


def source_rows(incremental_state: dict | None) -> Tensor | None:
    """Returns the argument of :func:`set_source_rows`; None if it was not called, so row r reads source r."""
    return (incremental_state or {}).get(_ROWS, {}).get(_ROWS)

"""Stores what attention keeps between two decoding steps in fairseq's incremental state.

A module's buffer is a flat dict. In attention with fast weights its entry ``held`` is the state or cache from which the
memory continues, and in softmax cross-attention its entry ``source`` holds the source. All other entries are tensors.
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
    """Returns the module's buffer, which is empty before the first step."""
    return module.get_incremental_state(incremental_state, _KEY) or {}


def store(module: FairseqIncrementalState, incremental_state: dict, buffer: Buffer) -> dict:
    """Stores the module's buffer; returns the incremental state."""
    return module.set_incremental_state(incremental_state, _KEY, buffer)


def reorder(module: FairseqIncrementalState, incremental_state: dict, new_order: Tensor) -> dict:
    """Makes row i of the module's buffer the old row new_order[i]: beam search swaps, repeats and drops hypotheses."""
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


def hand_rows(incremental_state: dict, rows: Tensor) -> None:
    """Tells cross-attention which source each row (hypothesis) reads, before it writes the sources.

    Args:
        rows: (R / beam, beam), int64. Row i * beam + j reads source ``rows[i, j]``. The numbers of a line are equal;
            its rows stay next to each other until they end.
    """
    incremental_state[_ROWS] = {_ROWS: rows}


def handed_rows(incremental_state: dict | None) -> Tensor | None:
    """Returns the rows that :func:`hand_rows` was given; None if it was not called, and row r reads source r."""
    return (incremental_state or {}).get(_ROWS, {}).get(_ROWS)

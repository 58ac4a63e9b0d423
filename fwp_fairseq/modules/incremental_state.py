"""Stores what attention keeps between two decoding steps in fairseq's incremental state.

A module's buffer is a flat dict. Attention with fast weights has ``held``, what its memory goes on from. Softmax
cross-attention has ``source``. All other entries are tensors.
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
    return module.set_incremental_state(incremental_state, _KEY, buffer)


def reorder(module: FairseqIncrementalState, incremental_state: dict, new_order: Tensor) -> dict:
    """Makes row i the old row new_order[i]. Beam search swaps, repeats and drops hypotheses in this way."""
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
        rows: (R / beam, beam), int64. Row i * beam + j reads source ``rows[i, j]``. All numbers of a line are the
            same, and its rows stay next to each other to the end.
    """
    incremental_state[_ROWS] = {_ROWS: rows}


def handed_rows(incremental_state: dict | None) -> Tensor | None:
    """Returns what :func:`hand_rows` was told, or None: then row r reads source r."""
    return (incremental_state or {}).get(_ROWS, {}).get(_ROWS)

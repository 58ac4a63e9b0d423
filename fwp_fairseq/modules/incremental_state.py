"""The fast weights between two decoding steps, in fairseq's store of incremental state.

A buffer is a flat dict of tensors with the batch (sentence x beam) first: ``W`` and ``z`` of the state, and for
cross-attention that must report weights ``k`` and ``mask``, the raw keys of the source. Its size does not depend on how
many steps were made.
"""

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor

from ..ops import FastWeights

_KEY = "attn_state"


def load(module: FairseqIncrementalState, incremental_state: dict | None) -> dict[str, Tensor]:
    """The module's buffer; empty before the first step."""
    return module.get_incremental_state(incremental_state, _KEY) or {}


def set_buffer(module: FairseqIncrementalState, incremental_state: dict, buffer: dict[str, Tensor]) -> dict:
    return module.set_incremental_state(incremental_state, _KEY, buffer)


def store(
    module: FairseqIncrementalState, incremental_state: dict, state: FastWeights, **others: Tensor
) -> dict[str, Tensor]:
    buffer = {"W": state.W, **({} if state.z is None else {"z": state.z}), **others}
    return set_buffer(module, incremental_state, buffer)


def reorder(module: FairseqIncrementalState, incremental_state: dict, new_order: Tensor) -> dict:
    """Makes row i the old row new_order[i]: hypotheses swap, finished sentences leave, beams multiply."""
    buffer = load(module, incremental_state)
    if buffer:
        buffer = {name: tensor.index_select(0, new_order) for name, tensor in buffer.items()}
        set_buffer(module, incremental_state, buffer)
    return incremental_state

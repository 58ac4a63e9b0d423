"""Stores what attention keeps between two decoding steps in fairseq's incremental state.

A module's buffer is a flat dict. Attention with fast weights has ``held``, what its memory goes on from: a state, or
the cache of lazy decoding. Softmax cross-attention has ``source``, and Transformer-XL has tensors.
"""

import math
from typing import Any

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor

from ..memories import select

_KEY = "attn_state"
Buffer = dict[str, Any]


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


def _reordered(x: Any, order: Tensor) -> Any:
    if isinstance(x, Tensor):
        return x.index_select(0, order)
    if isinstance(x, tuple):
        return select(x, order)
    x.reorder(order)
    return x


def distinct_sources(
    key: Tensor, key_padding_mask: Tensor | None, evenly: bool = False
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Removes the copies of each source that beam search makes before the first step.

    Args:
        key: (S, R, C), the copies of a sentence next to each other.
        key_padding_mask: (R, S) or None.
        evenly: whether equal sentences next to each other are kept, so that each source has as many rows.

    Returns:
        ``(key, key_padding_mask, rows)``: the N distinct sources, (S, N, C) and (N, S), and for each of the R rows the
        index of its source, int32.
    """
    new = torch.ones(key.shape[1], dtype=torch.bool, device=key.device)
    new[1:] = (key[:, 1:] != key[:, :-1]).flatten(2).any(2).any(0)
    if key_padding_mask is not None:
        new[1:] |= (key_padding_mask[1:] != key_padding_mask[:-1]).any(1)
    if evenly:
        lengths = new.nonzero()[:, 0].diff(append=torch.tensor([len(new)], device=key.device))
        new[:: math.gcd(*lengths.tolist()) or 1] = True
    rows = new.cumsum(0).sub_(1).int()
    first = new.nonzero()[:, 0]
    if len(first) < len(new):
        key = key.index_select(1, first)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.index_select(0, first)
    return key, key_padding_mask, rows

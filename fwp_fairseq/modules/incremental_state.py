"""Stores what attention keeps between two decoding steps in fairseq's incremental state.

A module's buffer is a flat dict in one of two forms. In lazy decoding it holds ``cache``, an object that reorders
itself: an :class:`ops.Cache`, or what a window decodes from. With ``--fwp-backend reference`` or under autograd
it holds ``W`` and ``z``, a row for each hypothesis. Cross-attention that has to report weights adds ``k`` and
``key_padding_mask``, the raw keys of the sources and their mask; in lazy decoding ``cache.rows`` tells which hypothesis
reads which source.
"""

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor

from ..layers import window_decoding
from ..ops import Cache

_KEY = "attn_state"
Buffer = dict[str, Tensor | Cache | window_decoding.Cache]


def load(module: FairseqIncrementalState, incremental_state: dict | None) -> Buffer:
    """Returns the module's buffer, which is empty before the first step."""
    return module.get_incremental_state(incremental_state, _KEY) or {}


def store(module: FairseqIncrementalState, incremental_state: dict, buffer: Buffer) -> dict:
    return module.set_incremental_state(incremental_state, _KEY, buffer)


def reorder(module: FairseqIncrementalState, incremental_state: dict, new_order: Tensor) -> dict:
    """Makes row i the old row new_order[i]. Beam search swaps, repeats and drops hypotheses in this way."""
    buffer = load(module, incremental_state)
    if "cache" in buffer:
        buffer["cache"].reorder(new_order)
    elif buffer:
        buffer = {name: tensor.index_select(0, new_order) for name, tensor in buffer.items()}
        store(module, incremental_state, buffer)
    return incremental_state


def source(k: Tensor, key_padding_mask: Tensor | None) -> dict[str, Tensor]:
    """The part of a buffer from which attention weights are computed."""
    return {"k": k} | ({} if key_padding_mask is None else {"key_padding_mask": key_padding_mask})


def distinct_sources(key: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Removes the copies of each source that beam search makes before the first step.

    Args:
        key: (S, R, C), the copies of a sentence next to each other.
        key_padding_mask: (R, S) or None.

    Returns:
        ``(key, key_padding_mask, rows)``: the N distinct sources, (S, N, C) and (N, S), and for each of the R rows the
        index of its source, int32.
    """
    new = torch.ones(key.shape[1], dtype=torch.bool, device=key.device)
    new[1:] = (key[:, 1:] != key[:, :-1]).flatten(2).any(2).any(0)
    if key_padding_mask is not None:
        new[1:] |= (key_padding_mask[1:] != key_padding_mask[:-1]).any(1)
    rows = new.cumsum(0).sub_(1).int()
    first = new.nonzero()[:, 0]
    if len(first) < len(new):
        key = key.index_select(1, first)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.index_select(0, first)
    return key, key_padding_mask, rows

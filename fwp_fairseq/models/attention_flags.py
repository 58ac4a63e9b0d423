"""Saves the attention options in checkpoints, because most of them cannot be inferred from the weights."""

import torch
from torch import Tensor, nn

from ..modules import BuiltAttention

BUFFER = "attention_flags"


def _describe(model: nn.Module) -> str:
    """Describes the options of all sites that do not have fairseq's attention; "softmax" if there are no such sites."""
    sites = [module for module in model.modules() if isinstance(module, BuiltAttention)]
    kinds = {(module.site, module.options.describe(module.head_dim)) for module in sites}
    texts = {f"{site}: {kind}" for site, kind in kinds if kind != "softmax"}
    return "; ".join(sorted(texts)) or "softmax"


def _encode(text: str) -> Tensor:
    # int64, not uint8: tools that average checkpoints sum buffers before they divide, which would overflow.
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def text_of(codes: Tensor) -> str:
    """Decodes the description in a checkpoint; raises ValueError if the entry is not text."""
    try:
        return bytes(codes.tolist()).decode()
    except (TypeError, ValueError):
        raise ValueError(f"the checkpoint is damaged: its entry {BUFFER} is not text") from None


def remember(model: nn.Module) -> None:
    """Adds a buffer with a description of the model's attention, which is saved with its parameters."""
    model.register_buffer(BUFFER, _encode(_describe(model)))


def check(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Raises ValueError for a checkpoint trained with other attention flags; the message names both.

    A checkpoint without this entry comes from a vanilla fairseq model, whose parameters have the same names and whose
    attention is softmax.
    """
    mine = _describe(model)  # not the buffer, which may come from the meta device
    theirs = state_dict.setdefault(BUFFER, _encode("softmax"))
    if torch.equal(_encode(mine), theirs.cpu()):
        return
    raise ValueError(
        f"the checkpoint was trained with other attention flags: checkpoint has [{text_of(theirs)}], this model has "
        f"[{mine}]; fwp convert reopens a checkpoint with other flags"
    )

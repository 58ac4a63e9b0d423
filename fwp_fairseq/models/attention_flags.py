"""Saves the attention options in checkpoints, because most of them cannot be told from the weights."""

import logging
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..feature_maps import RandomFeatures
from ..modules import SiteAttention

logger = logging.getLogger(__name__)

BUFFER = "attention_flags"


def _describe(model: nn.Module, state_dict: dict[str, Tensor] | None = None) -> str:
    """The options of each kind of site that has fast weights, sorted by site; "softmax" if there is none.

    With a ``state_dict``, random features that training redraws are described with the width that they have in it.
    """
    found = set()
    for name, module in model.named_modules():
        if not isinstance(module, SiteAttention):
            continue
        options, phi = module.options, module.feature_map
        if isinstance(phi, RandomFeatures) and phi.redraws:
            saved = (state_dict or {}).get(f"{name}.memory.features.feature_map.projection", phi.projection)
            options = replace(options, d_dot=phi.width_for(phi.d_key, m=saved.shape[-2]))
        found.add(f"{module.site}: {options.describe(module.head_dim)}")
    return "; ".join(sorted(found)) or "softmax"


def _encode(text: str) -> Tensor:
    # int64, not uint8: tools that average checkpoints sum buffers before they divide, which would overflow.
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def text_of(codes: Tensor) -> str:
    """Decodes the description that a checkpoint holds; ValueError if its entry is not such a text."""
    try:
        return bytes(codes.tolist()).decode()
    except (TypeError, ValueError):
        raise ValueError(f"the checkpoint is damaged: its entry {BUFFER} is not text") from None


def remember(model: nn.Module) -> None:
    """Adds a buffer with the description of the model's attention, which is saved with its parameters."""
    model.register_buffer(BUFFER, _encode(_describe(model)))


def check(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Raises ValueError for a checkpoint trained with other attention flags; the message names both.

    A checkpoint without the entry is of a stock fairseq model, whose parameters have the same names: its attention is
    softmax. Random features that training redraws may have another d_dot than the checkpoint's.
    """
    mine = getattr(model, BUFFER)
    theirs = state_dict.setdefault(BUFFER, _encode("softmax"))
    if torch.equal(mine.cpu(), theirs.cpu()):
        return
    was, now = text_of(theirs), text_of(mine)
    if was == _describe(model, state_dict):
        logger.info("random features of another width: checkpoint has [%s], this model has [%s]", was, now)
        state_dict[BUFFER] = mine
        return
    raise ValueError(
        f"the checkpoint was trained with other attention flags: checkpoint has [{was}], this model has [{now}]; "
        "fwp convert reopens a checkpoint with other flags"
    )

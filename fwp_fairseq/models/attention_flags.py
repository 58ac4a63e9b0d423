"""A checkpoint remembers the attention it was trained with: most choices leave no trace in the weights."""

import logging

import torch
from torch import Tensor, nn

from ..modules import FastWeightAttention

logger = logging.getLogger(__name__)

BUFFER = "attention_flags"


def _describe(model: nn.Module) -> str:
    """The choices at every site that has fast weights, once each, in the order of the model."""
    found = {
        f"{module.site}: {module.config.describe(module.head_dim)}"
        for module in model.modules()
        if isinstance(module, FastWeightAttention)
    }
    return "; ".join(sorted(found)) or "softmax"


def _encode(text: str) -> Tensor:
    # int64, not bytes: tools that average checkpoints sum buffers before they divide.
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def text_of(codes: Tensor) -> str:
    """The description that a checkpoint holds; ValueError where its entry is no such text."""
    try:
        return bytes(codes.tolist()).decode()
    except (TypeError, ValueError):
        raise ValueError(f"the checkpoint is damaged: its entry {BUFFER} is no text") from None


def remember(model: nn.Module) -> None:
    """Adds the description of the model's attention to what its checkpoints hold."""
    model.register_buffer(BUFFER, _encode(_describe(model)))


def check(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Refuses a checkpoint trained with other attention flags; ValueError names both.

    A checkpoint without the entry (a stock fairseq model, whose parameters have the same names) is taken for softmax.
    """
    mine = getattr(model, BUFFER)
    theirs = state_dict.setdefault(BUFFER, _encode("softmax"))
    if torch.equal(mine.cpu(), theirs.cpu()):
        return
    was, now = text_of(theirs), text_of(mine)
    message = (
        f"the checkpoint was trained with other attention flags: checkpoint has [{was}], this model has [{now}]; "
        "fwp convert reopens a checkpoint with others"
    )
    logger.error(message)
    raise ValueError(message)

"""Measures the total source and target length of a training set for rotary positions of cross-attention."""

from typing import Any

import numpy as np
import torch
from torch import nn

from ..modules.rotary import CrossPositions


def measure_lengths_before_training(model: nn.Module, task: Any) -> None:
    """Lets the task measure the training set before the first update, if the model has rotary positions that need it.

    The whole set is measured, so that all processes get the same result for any order of batches. Lengths in a
    checkpoint are kept: a model that is trained further, even with other data, keeps its positions.
    """
    begin = getattr(task, "begin_epoch", None)
    if begin is None or not any(isinstance(module, CrossPositions) for module in model.modules()):
        return

    def begin_epoch(epoch: int, model: nn.Module) -> Any:
        measure_lengths(model, task)
        return begin(epoch, model)

    task.begin_epoch = begin_epoch


def measure_lengths(model: nn.Module, task: Any) -> None:
    """Stores the numbers of source and target tokens in the training set in the model's unmeasured rotary positions.

    Raises:
        ValueError: the training set does not provide the lengths of both sides.
    """
    unmeasured = [module for module in model.modules() if isinstance(module, CrossPositions)]
    unmeasured = [module for module in unmeasured if not module.lengths.any()]
    if not unmeasured:
        return
    options = getattr(task, "cfg", None) or getattr(task, "args", None)  # the latter of tasks without a dataclass
    dataset = task.datasets.get(getattr(options, "train_subset", "train"))  # tasks without pairs do not know its name
    sizes = np.asarray(getattr(dataset, "sizes", 0))
    if sizes.ndim != 2 or sizes.shape[1] != 2:
        raise ValueError(
            f"rotary positions at the cross site: the training set, a {type(dataset).__name__}, does not tell the "
            "lengths of sources and targets; expected pairs of sentences as of --task translation"
        )
    total = torch.from_numpy(sizes.astype(np.int64).sum(0))
    for module in unmeasured:
        module.lengths.copy_(total)

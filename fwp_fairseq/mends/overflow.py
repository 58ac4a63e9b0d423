"""A training with --fp16 or --memory-efficient-fp16 on a CPU goes on after an overflow, at a smaller loss scale.

After an overflow, fairseq moves a number to the GPU, even if there is none.
"""

from unittest import mock

import torch
from fairseq.trainer import Trainer

from . import around


@around(Trainer, "train_step")
def step_without_gpu(train_step, self, *args, **kwargs):
    if self.device.type != "cpu":
        return train_step(self, *args, **kwargs)
    with mock.patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor):  # also for a step within a step
        return train_step(self, *args, **kwargs)

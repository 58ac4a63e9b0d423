"""Lets a training whose gradients become NaN end with an error that says when, why and what to change.

fairseq searches for the NaN with torch's backward hooks, which fail with StopIteration for a module that returns a
dictionary, such as fairseq's encoders.
"""

import torch
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

from . import around


def _tensors(output):
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


@around(NanDetector, "add_hooks")
def add_hooks(_, self, module):
    def watch(module, inputs, output):
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

    if self.forward:
        self.fhooks.append(module.register_forward_hook(self.fhook_fn))
    if self.backward:
        self.bhooks.append(module.register_forward_hook(watch))


@around(Trainer, "train_step")
def step_or_say_why(train_step, self, *args, **kwargs):
    """Names the update and the remedies in the error about NaN or infinite gradients."""
    try:
        return train_step(self, *args, **kwargs)
    except FloatingPointError as error:
        if error.__cause__ is not None:  # a step within this step has reported it
            raise
        reason = " ".join(str(error).strip("- \n").split())
        raise FloatingPointError(
            f"training ended in update {self.get_num_updates() + 1}: {reason}. Lower --lr, lengthen --warmup-updates, "
            "or set --clip-norm"
        ) from error

"""Lets a criterion choose what is trained: calls its ``prepare_model(model)`` before the optimizer is made.

fairseq builds criterions without their model, and optimizers from the parameters that require gradients.
"""

from fairseq.trainer import Trainer

from . import around


@around(Trainer, "__init__")
def prepare_and_initialize(initialize, self, cfg, task, model, criterion, *args, **kwargs):
    if hasattr(criterion, "prepare_model"):
        criterion.prepare_model(model)
    initialize(self, cfg, task, model, criterion, *args, **kwargs)

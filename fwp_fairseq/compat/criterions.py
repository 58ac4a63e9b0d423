"""Lets a criterion choose what is trained."""

from fairseq.trainer import Trainer


def let_them_prepare_models() -> None:
    """Calls ``prepare_model(model)`` of a criterion that has it before fairseq makes the optimizer.

    fairseq builds criterions without their model and optimizers from the parameters that require gradients, so there is
    no other place where a criterion can freeze some.
    """
    initialize = Trainer.__init__

    def prepare_and_initialize(self, cfg, task, model, criterion, *args, **kwargs):
        if hasattr(criterion, "prepare_model"):
            criterion.prepare_model(model)
        initialize(self, cfg, task, model, criterion, *args, **kwargs)

    Trainer.__init__ = prepare_and_initialize

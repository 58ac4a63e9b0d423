"""Reports, in the last line of the output, a training that became NaN or ended worse than it began.

Symptom: StopIteration when gradients become NaN; a training that has diverged ends like any other.
Cause: Torch's backward hooks, by which fairseq looks for the NaN, take no module that returns a dictionary.
Test: tests/fairseq_tools/test_divergence.py::test_nan_names_the_update_and_what_to_change
"""

import atexit
import logging
import math
import statistics

import torch
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

from . import around

logger = logging.getLogger(__name__)

_REMEDY = "Lower --lr, lengthen --warmup-updates, or set --clip-norm"
_LAST = 10  # the final loss is the mean over this many last updates
_FEWEST = 2 * _LAST  # a training of fewer updates is too short to judge


def _tensors(output):
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


@around(NanDetector, "add_hooks")
def add_hooks(_, self, module):
    """Makes fairseq's search for the origin of a NaN work with modules whose outputs are nested.

    The search uses torch's backward hooks, which fail with StopIteration for a module that returns no tensor at the top
    level of its output, such as fairseq's encoders.
    """

    def watch(module, inputs, output):
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

    if self.forward:
        self.fhooks.append(module.register_forward_hook(self.fhook_fn))
    if self.backward:
        self.bhooks.append(module.register_forward_hook(watch))


def _problem(losses: list[float], guessing: float) -> str | None:
    """Why a training counts as diverged, of which these are the first loss and the last ones; None if it does not."""
    mean = statistics.fmean(losses[-_LAST:] or [0.0])
    if not math.isfinite(mean):
        return f"the training diverged: its last losses are not finite. {_REMEDY}"
    if len(losses) >= _FEWEST and mean > max(losses[0], guessing):
        return (
            f"the training diverged: the mean of its last {_LAST} losses is {mean:.2f} bits per token, the first "
            f"was {losses[0]:.2f}, and guessing loses {guessing:.2f}. {_REMEDY}"
        )
    return None


def _guessing(task) -> float:
    """Bits per token of guessing among the words of the target dictionary; 0 for a task without one."""
    try:
        return math.log2(len(task.target_dictionary))
    except (NotImplementedError, TypeError):
        return 0.0


_losses: dict[int, float] = {}  # by update: the first of the session, and the last ones


def _conclude(trainer) -> None:
    if problem := _problem([*_losses.values()], _guessing(trainer.task)):
        logger.warning(problem)


@around(Trainer, "train_step")
def step_or_say_why(train_step, self, *args, **kwargs):
    """Warns of a diverged training when its process ends, and improves the error about NaN or infinite gradients.

    After the warning the exit status is still 0, because the training did what it was told to, and a short one may be
    meant to end like this. The error about gradients names the update and the remedies.
    """
    if not _losses and self.is_data_parallel_master:
        atexit.unregister(_conclude)
        atexit.register(_conclude, self)
    try:
        found = train_step(self, *args, **kwargs)
    except FloatingPointError as error:
        atexit.unregister(_conclude)
        if error.__cause__ is not None:  # a step within this step has reported it
            raise
        reason = " ".join(str(error).strip("- \n").split())
        raise FloatingPointError(
            f"training ended in update {self.get_num_updates() + 1}: {reason}. {_REMEDY}"
        ) from error
    if found and (loss := found.get("nll_loss", found.get("loss"))) is not None:
        _losses.setdefault(self.get_num_updates(), float(loss))
        if len(_losses) > _FEWEST:
            del _losses[list(_losses)[1]]
    return found

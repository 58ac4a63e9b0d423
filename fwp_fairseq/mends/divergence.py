"""Reports, in the last line of the output, a training that became NaN or ended worse than it began.

Symptom: StopIteration when gradients become NaN; a training that has diverged ends like any other.
Cause: Torch's backward hooks, by which fairseq looks for the NaN, take no module that returns a dictionary.
Test: tests/fairseq_tools/test_divergence.py::test_nan_names_the_update_and_what_to_change
"""

import atexit
import logging
import math
from collections import deque

import torch
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

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


def _watch_gradients_of_every_output() -> None:
    """Makes fairseq's search for the origin of a NaN work with modules whose outputs are nested.

    The search uses torch's backward hooks, which fail with StopIteration for a module that returns no tensor at the top
    level of its output, such as fairseq's encoders.
    """

    def add_hooks(self, module):
        def watch(module, inputs, output):
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

        if self.forward:
            self.fhooks.append(module.register_forward_hook(self.fhook_fn))
        if self.backward:
            self.bhooks.append(module.register_forward_hook(watch))

    NanDetector.add_hooks = add_hooks


class _Course:
    """The first and last losses of a session, in bits per token, and the loss of guessing among ``entries`` words."""

    def __init__(self, entries: int | None):
        self.guessing = math.log2(entries) if entries else 0.0
        self.first, self.last, self.updates, self.update = None, deque(maxlen=_LAST), 0, 0

    def add(self, update: int, loss: float) -> None:
        if update == self.update:  # fairseq may run a step within a step; the inner one has added it
            return
        self.first = loss if self.first is None else self.first
        self.last.append(loss)
        self.updates, self.update = self.updates + 1, update

    def problem(self) -> str | None:
        """Why the training counts as diverged, or None."""
        mean = sum(self.last) / len(self.last) if self.last else 0.0
        if not math.isfinite(mean):
            return f"the training diverged: its last losses are not finite. {_REMEDY}"
        if self.updates >= _FEWEST and mean > max(self.first, self.guessing):
            return (
                f"the training diverged: the mean of its last {_LAST} losses is {mean:.2f} bits per token, the first "
                f"was {self.first:.2f}, and guessing loses {self.guessing:.2f}. {_REMEDY}"
            )
        return None

    def conclude(self) -> None:
        if problem := self.problem():
            logger.warning(problem)


def _new_course(trainer: Trainer) -> _Course:
    try:
        entries = len(trainer.task.target_dictionary)
    except (NotImplementedError, TypeError):  # the task has no target dictionary
        entries = None
    course = _Course(entries)
    if trainer.is_data_parallel_master:
        atexit.register(course.conclude)
    return course


def _report_divergence() -> None:
    """Warns of a diverged training when its process ends, and improves the error about NaN or infinite gradients.

    After the warning the exit status is still 0, because the training did what it was told to, and a short one may be
    meant to end like this. The error about gradients names the update and the remedies.
    """
    train_step = Trainer.train_step

    def step_or_say_why(self, *args, **kwargs):
        if not hasattr(self, "_course"):
            self._course = _new_course(self)
        try:
            found = train_step(self, *args, **kwargs)
        except FloatingPointError as error:
            atexit.unregister(self._course.conclude)
            if error.__cause__ is not None:  # an inner step has reported it
                raise
            reason = " ".join(str(error).strip("- \n").split())
            raise FloatingPointError(
                f"training ended in update {self.get_num_updates() + 1}: {reason}. {_REMEDY}"
            ) from error
        if found and (loss := found.get("nll_loss", found.get("loss"))) is not None:
            self._course.add(self.get_num_updates(), float(loss))
        return found

    Trainer.train_step = step_or_say_why


def mend() -> None:
    _watch_gradients_of_every_output()
    _report_divergence()

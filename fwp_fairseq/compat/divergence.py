"""A training that becomes NaN, or ends knowing less than when it began, says so in its last line."""

import atexit
import logging
import math
from collections import deque

import torch
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

logger = logging.getLogger(__name__)

_REMEDY = "Lower --lr, lengthen --warmup-updates, or set --clip-norm"
_LAST = 10  # updates whose mean loss counts as the last
_FEWEST = 2 * _LAST  # a shorter training is none to judge


def _tensors(output):
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


def watch_gradients_of_every_output() -> None:
    """torch has no backward hooks for a module that returns no tensor at its top level, as fairseq's encoders do:
    looking for the origin of a NaN by them dies of StopIteration."""
    if getattr(NanDetector.add_hooks, "watches_every_output", False):
        return

    def add_hooks(self, module):
        def watch(module, inputs, output):
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

        if self.forward:
            self.fhooks.append(module.register_forward_hook(self.fhook_fn))
        if self.backward:
            self.bhooks.append(module.register_forward_hook(watch))

    add_hooks.watches_every_output = True
    NanDetector.add_hooks = add_hooks


class _Course:
    """First and last losses of a session, in bits a token: what a model that guesses loses is known."""

    def __init__(self, entries: int | None):
        self.guessing = math.log2(entries) if entries else 0.0
        self.first, self.last, self.updates, self.update = None, deque(maxlen=_LAST), 0, 0

    def add(self, update: int, loss: float) -> None:
        if update == self.update:  # an attempt within an attempt has added it
            return
        self.first = loss if self.first is None else self.first
        self.last.append(loss)
        self.updates, self.update = self.updates + 1, update

    def problem(self) -> str | None:
        mean = sum(self.last) / len(self.last) if self.last else 0.0
        if not math.isfinite(mean):
            return f"the training diverged: its last losses are not finite. {_REMEDY}"
        if self.updates >= _FEWEST and mean > max(self.first, self.guessing):
            return (
                f"the training diverged: its last {_LAST} losses are {mean:.2f} bits a token in the mean, the first "
                f"was {self.first:.2f}, and guessing loses {self.guessing:.2f}. {_REMEDY}"
            )
        return None

    def conclude(self) -> None:
        if problem := self.problem():
            logger.warning(problem)


def _new_course(trainer: Trainer) -> _Course:
    try:
        entries = len(trainer.task.target_dictionary)
    except (NotImplementedError, TypeError):  # a task without one
        entries = None
    course = _Course(entries)
    if trainer.is_data_parallel_master:
        atexit.register(course.conclude)
    return course


def say_in_the_last_line() -> None:
    """A diverged training is warned of when its process ends, its exit status stays 0: it did what it was told to, and
    a short one may be meant to. NaN or infinite gradients are an error, whose message names the update and the cure."""
    train_step = Trainer.train_step
    if getattr(train_step, "says_why", False):
        return

    def step_or_say_why(self, *args, **kwargs):
        if not hasattr(self, "_course"):
            self._course = _new_course(self)
        try:
            found = train_step(self, *args, **kwargs)
        except FloatingPointError as error:
            atexit.unregister(self._course.conclude)
            if error.__cause__ is not None:  # said already
                raise
            reason = " ".join(str(error).strip("- \n").split())
            raise FloatingPointError(
                f"training ended in update {self.get_num_updates() + 1}: {reason}. {_REMEDY}"
            ) from error
        if found and (loss := found.get("nll_loss", found.get("loss"))) is not None:
            self._course.add(self.get_num_updates(), float(loss))
        return found

    step_or_say_why.says_why = True
    Trainer.train_step = step_or_say_why

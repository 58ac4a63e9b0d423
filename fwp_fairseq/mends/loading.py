"""Checks a checkpoint before a model is made of it; errors name the file and the reason.

fairseq passes on torch's error messages, and builds a model of any size that the options request.
"""

import logging
import os
from collections.abc import Mapping
from functools import partial
from unittest import mock

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from ..checkpoint_content import architecture, is_damage, plain, read, section, why_unreadable
from ..checkpoint_model import Allowance, check_size, refuse_other_types
from ..text import printable
from ..upgrades import is_old
from . import around, program

logger = logging.getLogger(__name__)


@around(checkpoint_utils, "load_checkpoint_to_cpu")
def load_and_name(load, path, arg_overrides=None, *args, **kwargs):
    """Checks each checkpoint when it is read, and names the file in every error about it."""
    load_file = torch.load
    try:
        if old := [printable(name) for name in arg_overrides or () if is_old(name)]:
            raise ValueError(
                f"--model-overrides {old[0]}: this option was removed; expected one for the whole site, such as "
                "fwp_cross: 'softmax,source-window=8'"
            )
        with mock.patch.object(torch, "load", lambda file, *a, **k: read(file, partial(load_file, *a, **k))):
            state = load(path, arg_overrides, *args, **kwargs)
        options = section(state, "model")
        check_size(options, state["model"])
        for name in (arg_overrides or {}).keys() - options.keys() - section(state, "task").keys():
            if name.startswith("fwp_"):
                logger.warning(f"--model-overrides {printable(name)}: ignored; checkpoint {path} has no such option")
        return state
    except Exception as error:
        if not is_damage(error):
            raise
        reason = why_unreadable(error)
        if isinstance(error, ValueError) or "would run" in reason:
            raise RuntimeError(f"checkpoint {path} is refused: {reason}") from error
        advice = ". Remove it to continue from an earlier one, e.g. with --restore-file" if program("train") else ""
        raise RuntimeError(
            f"checkpoint {path} cannot be read (truncated or not a checkpoint): {reason.rstrip('.')}{advice}"
        ) from error


@around(checkpoint_utils, "load_model_ensemble_and_task")
def load_within_bounds(
    load, filenames, arg_overrides=None, task=None, strict=True, suffix="", num_shards=1, state=None
):  # fmt: skip
    """Builds each model with no more memory than its parameters need, and names its file in errors about it."""
    if num_shards > 1:
        return load(filenames, arg_overrides, task, strict, suffix, num_shards, state)
    models, cfg = [], None
    for filename in filenames:
        path = checkpoint_utils.get_maybe_sharded_checkpoint_filename(filename, suffix, 0, 1)
        if state is None and PathManager.exists(path):
            state = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
        parameters = state["model"] if state else {}
        try:
            with Allowance(sum(tensor.numel() for tensor in parameters.values())):
                (model,), cfg, task = load([filename], arg_overrides, task, strict, suffix, state=state)
            refuse_other_types(model, parameters)
        except OSError:  # of a file that is no checkpoint, or of none
            raise
        except Exception as error:
            reason = printable(" ".join(str(error).split()) or type(error).__name__)
            raise RuntimeError(reason if path in reason else f"checkpoint {path} is refused: {reason}") from error
        models.append(model)
        state = None
    return models, cfg, task


def _name(options: dict) -> str:
    return f"--arch {printable(architecture(options))}"


# The entries of optimizer states, in fairseq and torch, that are as large as their parameter.
_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}


def _is_like(value, default) -> bool:
    """Returns True if an option of a torch optimizer has the type of its default."""
    if default is None:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, type(default))
    if isinstance(default, tuple | list):
        lengths = isinstance(value, tuple | list) and len(value) == len(default)
        return lengths and all(map(_is_like, value, default))
    return isinstance(value, int | float | torch.Tensor) == isinstance(default, int | float)


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError for options and tensors of a loaded optimizer that have another type or shape than its own."""
    for group in optimizer.param_groups:
        for name, default in optimizer.defaults.items():
            if name in group and not _is_like(group[name], default):
                found = printable(repr(group[name])[:60])
                raise ValueError(f"option {name} of its optimizer is {found}, expected a value like {default}")
        for parameter in group["params"]:
            held = optimizer.state.get(parameter, {})
            for name, value in held.items() if isinstance(held, Mapping) else [("an entry", held)]:
                if value is None and name == "momentum_buffer":  # of SGD without momentum
                    continue
                where = f"{printable(name)} of its optimizer's state"
                if name in _MOMENTS and getattr(value, "shape", None) != parameter.shape:
                    found = getattr(value, "shape", type(value).__name__)
                    raise ValueError(f"{where} is {found}, expected shape {tuple(parameter.shape)}")
                if not isinstance(value, int | float | torch.Tensor):
                    raise ValueError(f"{where} is of type {type(value).__name__}, expected a tensor or a number")


@around(Trainer, "load_checkpoint")
def load_or_say_why(load, self, filename, *args, **kwargs):
    try:
        loaded = load(self, filename, *args, **kwargs)
        if loaded is not None and hasattr(optimizer := self.optimizer.optimizer, "defaults"):  # a single one of torch's
            _check_optimizer(optimizer)
        return loaded
    except Exception as error:
        if not str(error).startswith("Cannot load model parameters") or error.__context__ is None:
            if isinstance(error, OSError) or str(filename) in str(error):
                raise
            reason = printable(" ".join(str(error).split()) or type(error).__name__)
            raise RuntimeError(f"checkpoint {filename} does not fit the training: {reason}") from error
        reason = " ".join(str(error.__context__).split())
        theirs = section(checkpoint_utils.load_checkpoint_to_cpu(filename), "model")
        expected, actual = _name(plain(self.cfg.model)), _name(theirs)
        trainings = "" if expected == actual else f" (expected one of {expected}, actual {actual})"
        folder, advice = os.path.dirname(filename), ""
        if os.path.abspath(folder) == os.path.abspath(self.cfg.checkpoint.save_dir):
            advice = f". If another training is in {folder}, give this one a folder of its own with --save-dir"
        raise RuntimeError(f"checkpoint {filename} does not fit the model{trainings}: {reason}{advice}") from error

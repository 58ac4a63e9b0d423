"""Reads fairseq's checkpoints safely, and writes them completely or not at all."""

import logging
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ..checkpoint_content import architecture, is_damage, read, section, why_unreadable
from ..files import reason, refuse_interpreted, replaced
from ..text import printable
from .errors import CommandError, UsageError
from .parameters import refuse_not_finite


def refuse_output(output: Path, others: list[Path], flag: str = "--output") -> None:
    """Raises UsageError for an output that is one of the other files or cannot be a file."""
    if output.resolve() in [path.resolve() for path in others]:
        raise UsageError(f"{flag} {output} is one of the inputs")
    if output.is_dir() or not output.resolve().parent.is_dir():
        raise UsageError(f"{flag} {output}: expected a file in an existing folder")


def _named(path: Path, error: Exception) -> CommandError:
    """Returns the error for users, with the name of the checkpoint once."""
    message = reason(error) if isinstance(error, OSError) else str(error)
    return CommandError(message if str(path) in message else f"{path}: {message}")


def load(path: Path, mmap: bool = False) -> dict:
    """Loads a checkpoint on the CPU, without running pickled code; with ``mmap``, tensors are read only when used."""
    if not path.is_file():
        raise CommandError(f"{path}: no such checkpoint")
    try:
        mmap = mmap and zipfile.is_zipfile(path)  # files written by a torch before 1.6 are no archives
        return read(path, partial(torch.load, map_location="cpu", weights_only=True, mmap=mmap))
    except ValueError as error:
        raise CommandError(f"{path}: {printable(error)}") from None
    except Exception as error:  # damaged pickles end in errors of every kind
        if not is_damage(error):
            raise _named(path, error) from None
        why = why_unreadable(error)
        raise CommandError(f"{path}: truncated, or not a checkpoint that can be loaded safely: {why}") from None


def load_last(folder: Path) -> dict | None:
    """Loads the last checkpoint of a folder of ``fwp train``, as :func:`load` with ``mmap``; None if it has none."""
    last = folder / "checkpoints/checkpoint_last.pt"
    return load(last, mmap=True) if last.is_file() else None


def load_model(path: Path, find_data: Callable[[dict], Path]):
    """Returns the translation model of a checkpoint, its task, and the folder of its dictionaries.

    :mod:`..mends.loading` checks the file while fairseq reads it. ``find_data`` is called with the options of the task,
    and returns that folder. Raises CommandError if the checkpoint cannot be loaded, holds NaN or infinity, or is one of
    a language model.
    """
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import overwrite_args_by_name
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

    logging.disable(logging.INFO)
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        data = find_data(section(state, "task"))
        refuse_interpreted(data, (":", "${"))
        overwrite_args_by_name(state["cfg"], {"data": str(data)})
        if state.get("args") is not None:
            state["args"].data = str(data)
        name = architecture(section(state, "model"))
        if name not in ARCH_MODEL_REGISTRY and name not in MODEL_DATACLASS_REGISTRY:
            raise ValueError(
                f"architecture {printable(name)}: expected one of fairseq or of this plugin; fairseq-interactive finds "
                "others with --user-dir"
            )
        refuse_not_finite(path, state["model"])
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise _named(path, error) from None
    finally:
        logging.disable(logging.NOTSET)
    if not hasattr(model, "encoder"):
        raise CommandError(f"{path}: expected a translation model, actual {type(model).__name__}")
    return model, task, data


def drop_training_state(state: dict) -> None:
    """Removes the optimizer's state, and the moving averages that fairseq can load in place of the parameters."""
    state.pop("last_optimizer_state", None)
    for moving_average in ("ema", "ema_fp32_params"):
        state.get("extra_state", {}).pop(moving_average, None)


def save(state: dict, output: Path) -> None:
    try:
        with replaced(output) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise CommandError(f"--output {output} could not be written: {reason(error)}") from None

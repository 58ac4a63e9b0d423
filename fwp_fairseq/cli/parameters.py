"""Checks that a checkpoint's parameters are finite, and that they are those of the model that its options describe."""

import re
from pathlib import Path

import torch

from ..text import printable
from .errors import CommandError

# Entries that are no parameters: an uninitialised number that sinusoidal positions save, and layout versions.
_NO_PARAMETER = re.compile(r".*\._float_tensor|.*\.version")


def refuse_not_finite(path: Path, parameters: dict) -> None:
    """Raises CommandError for the first parameter that holds NaN, infinity or no real numbers."""
    for name, tensor in parameters.items():
        if tensor.is_complex() or tensor.dtype is torch.bool:
            raise CommandError(f"{path}: {name} is of type {tensor.dtype}, expected real numbers")
        if tensor.is_floating_point() and not _NO_PARAMETER.fullmatch(name):
            bad = tensor.numel() - int(tensor.isfinite().sum())
            if bad:
                problem = f"{bad} of {tensor.numel()} numbers in {name} are NaN or infinite"
                raise CommandError(f"{path}: {problem}, expected finite ones")


def complete(path: Path, parameters: dict, options: dict) -> dict:
    """Returns the parameters of a Transformer of fairseq's or of ours by the names that fairseq gives them today.

    Raises CommandError if a model with these options, which is built without memory, has more, fewer or other ones.
    """
    from ..checkpoint_model import check_size, refuse_other_types
    from ..models import attention_flags

    parameters = dict(parameters)
    try:
        model = check_size(options, parameters)
        model.upgrade_state_dict(parameters)
        refuse_other_types(model, parameters)
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from None
    described = model.state_dict()
    for name in parameters.keys() - described.keys():
        if not _NO_PARAMETER.fullmatch(name):
            raise CommandError(f"{path}: parameter {printable(name)} is none of the model that its options describe")
    for name, expected in described.items():
        if name == attention_flags.BUFFER or _NO_PARAMETER.fullmatch(name):
            continue
        shape = tuple(expected.shape)
        if name not in parameters:
            raise CommandError(f"{path}: parameter {name} is missing, expected one of shape {shape}")
        if tuple(parameters[name].shape) != shape:
            raise CommandError(f"{path}: {name} is of shape {tuple(parameters[name].shape)}, expected {shape}")
    return parameters

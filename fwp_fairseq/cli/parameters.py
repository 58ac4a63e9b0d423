"""Checks that a checkpoint's parameters are finite, and that they are those of the model that its options describe."""

import re
from argparse import Namespace
from pathlib import Path

import torch

from .errors import CommandError

# Entries that are no parameters: an uninitialised number that sinusoidal positions save, and layout versions.
_NO_PARAMETER = re.compile(r".*\._float_tensor|.*\.version")
_EMBEDDING = re.compile(r"(encoder|decoder)\.embed_tokens\.(embeddings\.\d+\.0\.)?weight")


def refuse_not_finite(path: Path, parameters: dict) -> None:
    """Raises CommandError for the first parameter that holds NaN or infinity or is not a tensor."""
    for name, tensor in parameters.items():
        if not isinstance(tensor, torch.Tensor):
            raise CommandError(f"{path}: {name} is of type {type(tensor).__name__}, expected a tensor")
        if tensor.is_floating_point() and not _NO_PARAMETER.fullmatch(name):
            bad = tensor.numel() - int(tensor.isfinite().sum())
            if bad:
                found = f"{bad} of {tensor.numel()} numbers in {name} are NaN or infinite"
                raise CommandError(f"{path}: {found}, expected finite ones")


class _Dictionary:
    """The part of a dictionary that building a model needs."""

    def __init__(self, words: int):
        self.words = words

    def __len__(self) -> int:
        return self.words

    def __eq__(self, other) -> bool:
        return self.words == other.words

    def pad(self) -> int:
        return 1


def refuse_other_parameters(path: Path, parameters: dict, options: dict) -> None:
    """Raises CommandError if the checkpoint lacks a parameter of a model with these options, or has another shape.

    The model is built on the meta device, without memory, and its dictionaries are as large as the checkpoint's
    embeddings.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY
    from omegaconf import OmegaConf

    from ..models import attention_flags

    words = dict.fromkeys(("encoder", "decoder"), 0)
    for name, tensor in parameters.items():
        if match := _EMBEDDING.fullmatch(name):
            words[match[1]] += tensor.shape[0] if tensor.dim() else 0
    target = _Dictionary(words["decoder"] or words["encoder"])
    source = _Dictionary(words["encoder"] or words["decoder"])
    task = Namespace(source_dictionary=source, target_dictionary=target, dictionary=target)
    cls = MODEL_REGISTRY[ARCH_MODEL_NAME_REGISTRY.get(options["_name"], options["_name"])]
    cfg = OmegaConf.create(options | dict.fromkeys(("encoder_embed_path", "decoder_embed_path")))
    try:
        with torch.device("meta"):
            model = cls.build_model(cfg, task)
    except (ValueError, RuntimeError) as error:
        raise CommandError(f"{path}: no model can be built with its options: {error}") from None
    parameters = dict(parameters)
    model.upgrade_state_dict(parameters)
    for name, expected in model.state_dict().items():
        if name == attention_flags.BUFFER or _NO_PARAMETER.fullmatch(name):
            continue
        shape = tuple(expected.shape)
        if name not in parameters:
            raise CommandError(f"{path}: parameter {name} is missing, expected one of shape {shape}")
        if tuple(parameters[name].shape) != shape:
            raise CommandError(f"{path}: {name} is of shape {tuple(parameters[name].shape)}, expected {shape}")

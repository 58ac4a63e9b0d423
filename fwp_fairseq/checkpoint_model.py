"""Builds the model that a checkpoint describes: without memory, or with no more than its parameters need."""

import argparse
import contextlib
import re

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .checkpoint_content import architecture
from .text import printable

_EMBEDDING = re.compile(r"(encoder|decoder)\.embed_tokens\.(embeddings\.\d+\.0\.)?weight")
# What has a row for each word if embeddings are made of characters. The head of an adaptive softmax also has a row for
# each tail.
_OUTPUT = re.compile(r"decoder\.(output_projection|adaptive_softmax\.(head|(tail)\.\d+\.2))\.weight")
# Flags whose default is another flag: fairseq's parser gives them no type, and its models take their text as a number.
_UNTYPED = {"decoder_input_dim", "decoder_output_dim"}
_NUMBER = re.compile(r"-?\d{1,9}(\.\d+)?", re.ASCII)
# The models that can be built without memory.
_FAMILIES = {"transformer", "transformer_lm", "fwp_transformer", "fwp_lm", "transformer_xl_lm"}
_SMALL_MODEL, _LARGE_TABLES = 2**26, 2**28  # numbers of 4 bytes: 256 MB and 1 GB


class Allowance(TorchDispatchMode):
    """Raises ValueError when the tensors made so far have more than 4 ``held`` + 2^28 numbers; 2^28 is for tables.

    Each operator is first run on the device meta, which counts the numbers before memory is allocated for them.
    """

    def __init__(self, held: int):
        super().__init__()
        self.held, self.left = held, 4 * held + _LARGE_TABLES

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        schema = operator._schema
        if not (operator.is_view or schema.is_mutable):
            names = {argument.name for argument in schema.arguments}
            own = {name: value for name, value in (("device", "meta"), ("generator", None)) if name in names}
            shapes, options = tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs or {}))
            try:
                made = operator(*shapes, **options | own)
            except Exception:  # an operator that depends on values, which makes no more numbers than it is given
                made = ()
            self.left -= sum(x.numel() for x in tree_leaves(made) if isinstance(x, torch.Tensor))
        if self.left < 0:
            raise ValueError(f"its options describe a model of far more numbers than the {self.held:,} that it holds")
        return operator(*args, **(kwargs or {}))


def check_types(options: dict) -> None:
    """Raises ValueError for a model option that is not a number although its architecture's default is one."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

    name = architecture(options)
    defaults = argparse.Namespace()
    if dataclass := MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(name, name)):
        defaults = argparse.Namespace(**vars(dataclass()))
    if name in ARCH_CONFIG_REGISTRY:
        with contextlib.suppress(AttributeError):  # of architectures that complete what a command line gives
            ARCH_CONFIG_REGISTRY[name](defaults)
    for option, default in vars(defaults).items():
        value = options.get(option)
        if option in _UNTYPED and isinstance(value, str) and _NUMBER.fullmatch(value):
            continue
        if isinstance(default, int | float) and not isinstance(value, int | float | None):
            raise ValueError(f"option {option} of its model is {printable(repr(value)[:60])}, expected a number")


class _Dictionary:
    """The part of a dictionary that building a model needs."""

    def __init__(self, words: int):
        self.words = words

    def __len__(self) -> int:
        return self.words

    @property
    def nspecial(self) -> int:
        """The number of all words: fairseq does not split special words into characters, so all count as special."""
        return self.words

    def __eq__(self, other) -> bool:  # fairseq compares the dictionaries if embeddings are shared
        return self.words == other.words

    def pad(self) -> int:
        return 1

    def update(self, other) -> None:
        """Takes in the words of another dictionary (--merge-src-tgt-embed), which the embeddings have already."""


def build(options: dict, parameters: dict, device: str = "cpu"):
    """Builds the model that the options describe, on the device meta without memory; raises whatever building raises.

    Its dictionaries are as large as the embeddings among the ``parameters``, or else as the output.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
    from omegaconf import OmegaConf

    words = dict.fromkeys(("encoder", "decoder"), 0)
    for name, tensor in parameters.items():
        if match := _EMBEDDING.fullmatch(name):
            words[match[1]] += tensor.shape[0] if tensor.dim() else 0
    for name, tensor in parameters.items() if not any(words.values()) else ():
        if (match := _OUTPUT.fullmatch(name)) and tensor.dim():
            words["encoder"] += tensor.shape[0] - bool(match[3])
    target = _Dictionary(words["decoder"] or words["encoder"])
    source = _Dictionary(words["encoder"] or words["decoder"])
    task = argparse.Namespace(source_dictionary=source, target_dictionary=target, dictionary=target)
    name = ARCH_MODEL_NAME_REGISTRY.get(options["_name"], options["_name"])
    options = options | dict.fromkeys(("encoder_embed_path", "decoder_embed_path"))
    if name in MODEL_DATACLASS_REGISTRY:  # options that are newer than the checkpoint have their defaults
        cfg = OmegaConf.create(vars(MODEL_DATACLASS_REGISTRY[name]()) | options)
    else:
        cfg = argparse.Namespace(**options)
    cls = MODEL_REGISTRY[name]
    with torch.random.fork_rng(devices=[]), torch.device(device):
        return cls.build_model(cfg, task)


def build_known(options: dict, parameters: dict):
    """Builds the model on the device meta; None unless it is a Transformer of fairseq's or a model of this plugin.

    Raises ValueError if no model can be built with the options.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    name = architecture(options)
    if ARCH_MODEL_NAME_REGISTRY.get(name, name) not in _FAMILIES:
        return None
    try:
        return build(options | {"_name": name}, parameters, "meta")
    except Exception as error:  # the options may be anything
        reason = printable(" ".join(str(error).split()) or type(error).__name__)
        raise ValueError(f"no model can be built with its options: {reason}") from None


def refuse_other_types(model, parameters: dict) -> None:
    """Raises ValueError for the first tensor that is floating point where the model's is not, or the reverse."""
    for name, tensor in model.state_dict().items():
        stored = parameters.get(name, tensor)
        if tensor.is_floating_point() != stored.is_floating_point():
            raise ValueError(f"{name} is of type {stored.dtype}, expected {tensor.dtype}")


def check_size(options: dict, parameters: dict):
    """Returns the model of the options, without memory; None if it is neither fairseq's Transformer nor ours.

    Raises ValueError if no model can be built with the options, or one that is far larger than the checkpoint.
    """
    check_types(options)
    model = build_known(options, parameters)
    if model is None:
        return None
    held = sum(tensor.numel() for tensor in parameters.values())
    for tensors, small in ((model.parameters(), _SMALL_MODEL), (model.buffers(), _LARGE_TABLES)):
        described = sum(tensor.numel() for tensor in tensors)
        if described > 4 * held + small:
            raise ValueError(f"its options describe a model of {described:,} numbers, but it holds {held:,}")
    return model

"""Checks what a checkpoint holds before anything is made of it, because it may come from a stranger."""

import argparse
import os
import re
import zipfile
from collections.abc import Mapping

import torch

from .text import printable

_LONGEST_WALK, _DEEPEST = 1_000_000, 64
# A resolver of omegaconf, such as ${oc.env:HOME}; references to other options, ${optimization.lr}, are fairseq's own.
_RESOLVER = re.compile(r"\$\{[^}]*:")
# What torch says of a class or function that weights_only does not let through.
_UNSAFE = re.compile(r"(?:GLOBAL|global) (\S+)[^\n]* was not an allowed global|unsupported GLOBAL (\S+)")
_EMBEDDING = re.compile(r"(encoder|decoder)\.embed_tokens\.(embeddings\.\d+\.0\.)?weight")
# What has a row for each word where embeddings are made of characters. The head has one more for each tail.
_OUTPUT = re.compile(r"decoder\.(output_projection|adaptive_softmax\.(head|(tail)\.\d+\.2))\.weight")
# The models that can be built without memory.
_FAMILIES = {"transformer", "transformer_lm", "fwp_transformer", "fwp_lm", "transformer_xl_lm"}
_SMALL_MODEL, _LARGE_TABLES = 2**26, 2**28  # numbers of 4 bytes: 256 MB and 1 GB
_FEW_LAYERS = 64


def why_unreadable(error: Exception) -> str:
    """One line that says why torch could not read a file; it never runs what the file names."""
    if found := _UNSAFE.search(str(error)):
        return f"reading it would run {printable(found[1] or found[2])}, which no checkpoint of fairseq needs"
    return printable(str(error).partition("\n")[0]) or type(error).__name__


def check_file(file) -> None:
    """Raises ValueError for a path or open file that unpacks to more than its own size; torch compresses nothing."""
    if not zipfile.is_zipfile(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"damaged archive: {error}") from None
    size = os.fstat(file.fileno()).st_size if hasattr(file, "fileno") else os.path.getsize(file)
    if unpacked > size:
        raise ValueError(f"it has {size:,} bytes and unpacks to {unpacked:,}, expected at most as many")


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        kind = f"{tensor.layout}, {tensor.device}, {tensor.dtype}"
        raise ValueError(f"{name} is of another kind ({kind}), expected a dense tensor")
    needed, held = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if needed > held:
        raise ValueError(f"{name} is of shape {tuple(tensor.shape)} and holds {held:,} of {needed:,} bytes")


class _Walk:
    """Visits every value; lists that hold the same list many times, or themselves, end it with an error."""

    def __init__(self):
        self.visited = 0

    def visit(self, value, name: str, depth: int = 0) -> None:
        self.visited += 1
        if self.visited > _LONGEST_WALK or depth > _DEEPEST:
            raise ValueError(f"{name} is nested too deeply or has too many parts")
        if isinstance(value, torch.Tensor):
            _check_tensor(name, value)
        elif isinstance(value, str) and _RESOLVER.search(value):
            raise ValueError(f"{name} is {printable(value)!r}, expected a plain value")
        elif isinstance(value, Mapping | argparse.Namespace):
            for key, part in plain(value).items():
                self.visit(part, f"{name}.{printable(key)}" if name else printable(key), depth + 1)
        elif isinstance(value, list | tuple | set):
            for part in value:
                self.visit(part, name, depth + 1)


def plain(section) -> dict:
    """A section of the configuration as a dictionary; references between options are not resolved."""
    if isinstance(section, argparse.Namespace):
        return vars(section)
    if type(section).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(section, resolve=False)
    return dict(section)


def section(state: dict, name: str) -> dict:
    """The options of the model or of the task that a checkpoint holds, old or new."""
    return plain((state.get("cfg") or {}).get(name) or state.get("args") or {})


def architecture(options: dict) -> str | None:
    """The architecture that the options of a model name; old checkpoints have it as ``arch`` alone."""
    return options.get("_name") or options.get("arch")


def _options_by_name(found, name: str) -> dict:
    if found is not None and not isinstance(found, Mapping | argparse.Namespace):
        raise ValueError(f"{name} is of type {type(found).__name__}, expected options by their names")
    return plain(found or {})


def check(state) -> None:
    """Raises ValueError, which says where, unless the state has the form of a fairseq checkpoint.

    Tensors hold all of their numbers, options are plain values, and there are no more layers than parameters for them.
    """
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError("not a fairseq checkpoint, it has no model parameters")
    _Walk().visit(state, "")
    for name, value in state["model"].items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"{printable(name)} is of type {type(value).__name__}, expected a tensor")
    for name, kind in (("extra_state", dict), ("task_state", dict), ("optimizer_history", list)):
        if not isinstance(state.get(name) or kind(), kind):
            raise ValueError(f"{name} is of type {type(state[name]).__name__}, expected {kind.__name__}")
    for entry in state.get("optimizer_history") or ():
        _options_by_name(entry, "an entry of optimizer_history")
    cfg = _options_by_name(state.get("cfg"), "cfg")
    for name in ("task", "common", "checkpoint"):
        _options_by_name(cfg.get(name), f"cfg.{name}")
    most = max(_FEW_LAYERS, len(state["model"]) // 4)  # no layer has less than four parameters
    for found, where in ((cfg.get("model"), "cfg.model"), (state.get("args"), "args")):
        for name, value in _options_by_name(found, where).items():
            if name in ("_name", "arch") and not isinstance(value, str | None):
                raise ValueError(f"{where}.{name} is {printable(repr(value)[:60])}, expected a name")
            if str(name).endswith(("layers", "depth")) and str(value).isdigit() and int(str(value)) > most:
                raise ValueError(f"{where}.{name} is {value}, but there are parameters for at most {most}")


class _Dictionary:
    """The part of a dictionary that building a model needs."""

    def __init__(self, words: int):
        self.words = words

    def __len__(self) -> int:
        return self.words

    @property
    def nspecial(self) -> int:
        """All words count as special, of which fairseq reads no characters."""
        return self.words

    def __eq__(self, other) -> bool:
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
    """As :func:`build`, on the device meta; None unless it is a Transformer of fairseq's or a model of this plugin.

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


def check_size(options: dict, parameters: dict):
    """The model that the options describe, without memory; None if they name none of fairseq's and our Transformers.

    Raises ValueError if no model can be built with the options, or one that is far larger than the checkpoint.
    """
    model = build_known(options, parameters)
    if model is None:
        return None
    held = sum(tensor.numel() for tensor in parameters.values())
    for found, small in ((model.parameters(), _SMALL_MODEL), (model.buffers(), _LARGE_TABLES)):
        described = sum(tensor.numel() for tensor in found)
        if described > 4 * held + small:
            raise ValueError(f"its options describe a model of {described:,} numbers, but it holds {held:,}")
    return model

"""Checks the content of a checkpoint, which may come from a stranger, before it is used."""

import argparse
import errno
import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping

import torch

from .text import printable
from .upgrades import upgraded

_LONGEST_WALK, _DEEPEST = 1_000_000, 64
# A resolver of omegaconf, such as ${oc.env:HOME}; references to other options, ${optimization.lr}, are fairseq's own.
_RESOLVER = re.compile(r"\$\{[^}]*:")
# What torch says of a class or function that ``weights_only`` refuses.
_UNSAFE = re.compile(r"(?:GLOBAL|global) (\S+)[^\n]* was not an allowed global|unsupported GLOBAL (\S+)")
_CAUSE = re.compile(r"WeightsUnpickler error:\s*([^\n]+)")  # which follows advice to read the file without weights_only
_FEW_LAYERS = 64
# A number of layers: of an option, or of one in the attention of a site.
_DEPTH = re.compile(r"(?:layers|depth)=(\d+)(?:,|$)", re.ASCII)
# Entries of the states of training and task that count something; times, losses and scores may be any number.
_COUNTS = {"epoch", "iterations_in_epoch", "num_updates", "num_runs", "longest_source"}
_NUMBERS = _COUNTS | {"best", "best_loss", "val_loss", "previous_training_time"}
_ABSENT = {"best", "best_loss", "val_loss"}  # before the first validation
_STATES, _LARGEST_COUNT = ("extra_state", "task_state", "optimizer_history"), 2**31


def why_unreadable(error: Exception) -> str:
    """Says in one line why torch could not read a file; it never runs what the file names."""
    if unsafe := _UNSAFE.search(str(error)):
        return f"reading it would run {printable(unsafe[1] or unsafe[2])}, which no checkpoint of fairseq needs"
    if cause := _CAUSE.search(str(error)):
        return printable(cause[1])
    return printable(str(error).partition("\n")[0]) or type(error).__name__


def is_damage(error: Exception) -> bool:
    """Returns True if an error comes from the content of a file, not from the system, such as a missing permission."""
    return not isinstance(error, OSError) or error.errno in (None, errno.EINVAL)


def check_file(file) -> None:
    """Raises ValueError for a path or open file that is a damaged archive, or unpacks to more than its own size.

    Torch does not compress checkpoints, and loads them without comparing their checksums (CRC-32). This function
    compares them and reads each byte once. Files written by a torch before 1.6 are no archives and have no checksums.
    """
    if not zipfile.is_zipfile(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            size = os.fstat(file.fileno()).st_size if hasattr(file, "fileno") else os.path.getsize(file)
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked <= size and (damaged := archive.testzip()):
                raise zipfile.BadZipFile(f"the checksum of {printable(damaged)} is wrong")
    except Exception as error:  # zipfile ends in errors of many kinds
        raise ValueError(f"damaged archive: {printable(str(error) or type(error).__name__)}") from None
    if unpacked > size:
        raise ValueError(f"it has {size:,} bytes and unpacks to {unpacked:,}, expected at most as many")


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        kind = f"{tensor.layout}, {tensor.device}, {tensor.dtype}"
        raise ValueError(f"{name} is of another kind ({kind}), expected a dense tensor")
    needed, held = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if needed > held:
        raise ValueError(f"{name} is of shape {tuple(tensor.shape)} and holds {held:,} of {needed:,} bytes")


def _check_number(name: str, value) -> None:
    """Raises ValueError if the name says that the entry of a state is a number, and the value is not one."""
    state, _, entry = name.partition(".")
    entry = entry.rpartition(".")[2]
    if state not in _STATES or entry not in _NUMBERS or (value is None and entry in _ABSENT):
        return
    if isinstance(value, torch.Tensor) and value.dim() == 0:  # a time that processes have added up
        value = value.item()
    low, high = (0, _LARGEST_COUNT) if entry in _COUNTS else (-math.inf, math.inf)
    if not isinstance(value, int | float) or not (low <= value <= high or (value != value and entry not in _COUNTS)):
        expected = "a count below 2^31" if entry in _COUNTS else "a number"
        raise ValueError(f"{name} is {printable(repr(value)[:60])}, expected {expected}")


class _Walk:
    """Visits every value; raises ValueError if there are too many, as in a list that contains itself."""

    def __init__(self):
        self.visited = 0

    def visit(self, value, name: str, depth: int = 0) -> None:
        self.visited += 1
        if self.visited > _LONGEST_WALK or depth > _DEEPEST:
            raise ValueError(f"{name} is nested too deeply or has too many parts")
        _check_number(name, value)
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
    """Returns a section of the configuration as a dictionary; references between options are not resolved."""
    if isinstance(section, argparse.Namespace):
        return vars(section)
    if type(section).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(section, resolve=False)
    return dict(section)


def section(state: dict, name: str) -> dict:
    """Returns the options of the model or of the task that a checkpoint holds, old or new."""
    return plain((state.get("cfg") or {}).get(name) or state.get("args") or {})


def architecture(options: dict) -> str | None:
    """Returns the architecture that the options of a model name; old checkpoints have it as ``arch`` alone."""
    return options.get("_name") or options.get("arch")


def _options_by_name(options, name: str) -> dict:
    if options is not None and not isinstance(options, Mapping | argparse.Namespace):
        raise ValueError(f"{name} is of type {type(options).__name__}, expected options by their names")
    return plain(options or {})


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
    for name in ("model", "task", "common", "checkpoint"):
        _options_by_name(cfg.get(name), f"cfg.{name}")
        if cfg.get(name, cfg) is None:
            raise ValueError(f"cfg.{name} is None, expected options by their names")
    most = max(_FEW_LAYERS, len(state["model"]) // 4)  # no layer has fewer than four parameters
    for options, where in ((cfg.get("model"), "cfg.model"), (state.get("args"), "args")):
        for name, value in _options_by_name(options, where).items():
            if name in ("_name", "arch") and not isinstance(value, str | None):
                raise ValueError(f"{where}.{name} is {printable(repr(value)[:60])}, expected a name")
            layers = _DEPTH.search(f"{name}={value}")
            if layers and int(layers[1]) > most:
                raise ValueError(f"{where}.{name} is {value}, but there are parameters for at most {most}")


def upgrade(state: dict) -> None:
    """Brings the options in an older checkpoint up to date; the state has been checked.

    A checkpoint without what only a training needs gets empty entries, which fairseq expects of all but its oldest.
    """
    if "best_loss" not in state:
        state["optimizer_history"] = state.get("optimizer_history") or [{"lr_scheduler_state": {}}]
        state["extra_state"] = state.get("extra_state") or {}
    cfg = state.get("cfg")
    before = section(state, "model")
    if (after := upgraded(before)) is before:
        return
    if cfg:
        state["cfg"] = plain(cfg) | {"model": after}
    else:
        state["args"] = argparse.Namespace(**after)


def read(file, load: Callable) -> dict:
    """Loads a path or an open file by ``load`` between the checks of the file and of the state, and upgrades the state.

    Raises ValueError, as the checks do, and whatever ``load`` raises.
    """
    check_file(file)
    if hasattr(file, "seek"):
        file.seek(0)
    state = load(file)
    check(state)
    upgrade(state)
    return state

"""The options of a converted model: its architecture, its sizes, and the attention of each site."""

import argparse
from pathlib import Path

from ..checkpoint_content import architecture
from ..option import hyphens
from ..options import SITES
from . import archs
from .errors import CommandError

# The models that can be converted, each with the model of this plugin that has all of its parameters by the same names.
_FAMILIES = {
    "fwp_transformer": "fwp_transformer",
    "fwp_lm": "fwp_lm",
    "transformer": "fwp_transformer",
    "transformer_lm": "fwp_lm",
}


def default_flags(arch: str) -> dict:
    """Returns the attention flags of an architecture's model, with their defaults."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

    fields = MODEL_DATACLASS_REGISTRY[ARCH_MODEL_NAME_REGISTRY[arch]].__dataclass_fields__
    return {name: archs.enum_value(field.default) for name, field in fields.items() if name.startswith("fwp_")}


def resolved(options) -> dict:
    """Returns options as a dict of plain values, from a Namespace or a configuration of OmegaConf."""
    from omegaconf import OmegaConf

    if isinstance(options, argparse.Namespace):
        options = vars(options)
    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options, resolve=True, enum_to_str=True)
    return {name: archs.enum_value(value) for name, value in options.items()}


def architectures(path: Path, options: dict) -> tuple[str, str]:
    """Returns (the checkpoint's architecture, the converted model's architecture)."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    old = architecture(options)
    model = ARCH_MODEL_NAME_REGISTRY.get(old, old)
    if model not in _FAMILIES:
        raise CommandError(f"--input {path} is of model {model}, expected one of {', '.join(_FAMILIES)}")
    family = _FAMILIES[model]
    if model == family:
        return old, old
    same_sizes = _FAMILIES.get(old, f"fwp_{old}")
    return old, same_sizes if ARCH_MODEL_NAME_REGISTRY.get(same_sizes) == family else family


def options_of_model(cfg: dict, old: str, new: str) -> dict:
    """Returns every option of the converted model, except attention flags that the checkpoint does not have."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

    options = cfg["model"]
    if isinstance(options, argparse.Namespace):  # a legacy model, whose defaults fairseq too fills in when it loads it
        options = argparse.Namespace(**vars(options))
        ARCH_CONFIG_REGISTRY[old](options)
    checkpoint_options = resolved(options)
    task = resolved(cfg["task"])
    converted: dict = {"_name": new}
    for name, field in MODEL_DATACLASS_REGISTRY[ARCH_MODEL_NAME_REGISTRY[new]].__dataclass_fields__.items():
        if name in checkpoint_options:
            converted.setdefault(name, checkpoint_options[name])
        elif not name.startswith(("_", "fwp_")):
            default = archs.enum_value(field.default)
            if isinstance(default, str) and default.startswith("${"):
                default = task.get(default[2:-1].rpartition(".")[2])
            converted[name] = default
    return converted


def flags_of_sites(before: dict, defaults: dict, args) -> dict:
    """Returns the converted model's attention flags: those given, else the checkpoint's, else the defaults.

    A flag for all sites replaces the same option of single sites, and a feature map for all sites replaces all of their
    options. Options of a site without a kind change what the checkpoint has there.
    """
    from ..config import attention_of_flags, with_common

    chosen_flags = {name: archs.enum_value(value) for name, value in vars(args).items() if name.startswith("fwp_")}
    chosen_flags = {name: value for name, value in chosen_flags.items() if value is not None}
    for name in chosen_flags.keys() - defaults.keys():
        flags = ", ".join(f"--{hyphens(known)}" for known in defaults)
        raise CommandError(f"--{hyphens(name)}: this model has no such site, expected some of {flags}")
    kept = {} if args.reset else {name: value for name, value in before.items() if value is not None}
    flags, cfg = defaults | kept | chosen_flags, argparse.Namespace(**chosen_flags)
    for site in SITES:
        name, chosen = f"fwp_{site}", attention_of_flags(cfg, site)
        if "fwp_feature_map" in chosen_flags:
            flags[name] = chosen_flags.get(name)
        elif name in kept and chosen.kind is None:
            was = attention_of_flags(argparse.Namespace(**kept), site)
            flags[name] = str(with_common(cfg, site, was).changed(chosen.changes)) or None
    return {name: flags[name] for name in defaults}

"""Makes an architecture's name in a Hydra configuration mean what it means to --arch, and refuses an unknown one.

fairseq-hydra-train uses only the model class of this name, with the defaults of that class. If the name is unknown or
missing, the message that fairseq formats ends in a KeyError.
"""

import argparse
from dataclasses import fields

from fairseq import models
from fairseq.dataclass import utils
from omegaconf import DictConfig, OmegaConf, open_dict

from . import around, is_ours


def _filled(cfg: DictConfig, dataclass: type) -> DictConfig:
    """Returns ``cfg``, in which options that it does not set have the values of the architecture that it names."""
    values = {key: value for key, value in OmegaConf.to_container(cfg, resolve=True).items() if value != "???"}
    # For this plugin's options null is the default, which an architecture may change; for fairseq's it can be a value.
    absent = [name for name, value in values.items() if value is None and name.startswith("fwp_")]
    args = argparse.Namespace(**{name: value for name, value in values.items() if name not in absent})
    models.ARCH_CONFIG_REGISTRY[cfg._name](args)
    filled = cfg.copy()
    with open_dict(filled):
        for name in absent:
            del filled[name]
    for option in fields(dataclass):
        value = getattr(args, option.name, None)
        if value is None or value == values.get(option.name):
            continue
        kind = utils.interpret_dc_type(option.type)
        # fairseq's own architectures set numbers for options that are declared as booleans, and the reverse.
        filled[option.name] = kind(value) if kind in (bool, int, float) else value
    filled._set_parent(cfg._get_parent())
    return filled


@around(utils, "merge_with_parent")
def merge_filled(merge, dc, cfg, remove_missing=False):
    """Fills in the architecture's values before fairseq merges the defaults, from which they cannot be told later."""
    name = models.ARCH_MODEL_NAME_REGISTRY.get(getattr(cfg, "_name", None))
    if name is not None and models.MODEL_DATACLASS_REGISTRY.get(name) is dc and is_ours(models.MODEL_REGISTRY[name]):
        cfg = _filled(cfg, dc)
    return merge(dc, cfg, remove_missing)


@around(models, "build_model")
def build_known(build, cfg, task, *more, **named):
    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
    is_nested = name is None and len(cfg) == 1  # model: {NAME: {...}}
    if not is_nested and name not in models.ARCH_MODEL_REGISTRY and name not in models.MODEL_REGISTRY:
        raise ValueError(f"model._name {name}: expected an architecture, as `fwp archs` lists them, or a model")
    return build(cfg, task, *more, **named)

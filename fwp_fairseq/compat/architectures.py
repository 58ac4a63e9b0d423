"""An architecture's name in a Hydra configuration means what it means to --arch."""

import argparse
from dataclasses import fields

from fairseq import models
from fairseq.dataclass import utils
from omegaconf import DictConfig, OmegaConf


def _filled(cfg: DictConfig, dataclass: type) -> DictConfig:
    """``cfg`` with the values of the architecture that it names, below its own."""
    given = {key: value for key, value in OmegaConf.to_container(cfg, resolve=True).items() if value != "???"}
    args = argparse.Namespace(**given)
    models.ARCH_CONFIG_REGISTRY[cfg._name](args)
    filled = cfg.copy()
    for option in fields(dataclass):
        value = getattr(args, option.name, None)
        if value is None or value == given.get(option.name):
            continue
        kind = utils.interpret_dc_type(option.type)
        # fairseq's own architectures give numbers where options are declared as truth values, and the reverse.
        filled[option.name] = kind(value) if kind in (bool, int, float) else value
    filled._set_parent(cfg._get_parent())
    return filled


def fill_by_name() -> None:
    """fairseq-hydra-train looks up the model of ``model: {_name: ARCHITECTURE}`` and takes that model's own defaults.

    The values of the architecture have to come before these are merged in: afterwards nothing tells them from what the
    user gave. fairseq merges where it adds the defaults of the chosen dataclasses, by a function that it looks
    up there.
    """
    merge = utils.merge_with_parent
    if getattr(merge, "fills_architectures", False):
        return

    def merge_filled(dc, cfg, remove_missing=False):
        name = models.ARCH_MODEL_NAME_REGISTRY.get(getattr(cfg, "_name", None))
        if name is not None and models.MODEL_DATACLASS_REGISTRY.get(name) is dc:
            cfg = _filled(cfg, dc)
        return merge(dc, cfg, remove_missing)

    merge_filled.fills_architectures = True
    utils.merge_with_parent = merge_filled

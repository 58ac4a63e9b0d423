"""Saves a model that keeps only some layers of another (--encoder-layers-to-keep) with the number of layers it has.

fairseq removes the option from the checkpoint, but leaves the original number of layers in it.
"""

import re

from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from . import around


def _layers(parameters: dict, side: str) -> int:
    return len({match[1] for name in parameters if (match := re.match(rf"{side}.*?\.layers\.(\d+)\.", name))})


@around(checkpoint_utils, "prune_state_dict")
def prune_and_count(prune, state_dict, model_cfg):
    kept = {side: getattr(model_cfg, f"{side}_layers_to_keep", None) for side in ("encoder", "decoder")}
    kept = {side: len(chosen.split(",")) for side, chosen in kept.items() if chosen}
    if not kept:
        return prune(state_dict, model_cfg)
    if any(_layers(state_dict, side) != number for side, number in kept.items()):
        others = {name: tensor for name, tensor in state_dict.items() if not name.startswith(tuple(kept))}
        state_dict = {**prune(state_dict, model_cfg), **others}  # fairseq drops the layers of the other side
    for side, number in kept.items():  # a checkpoint that was pruned before, as when a training is resumed, stays
        for name, value in ((f"{side}_layers_to_keep", None), (f"{side}_layers", number)):
            if OmegaConf.is_config(model_cfg):
                OmegaConf.update(model_cfg, name, value, force_add=True)
            else:
                setattr(model_cfg, name, value)
    return state_dict

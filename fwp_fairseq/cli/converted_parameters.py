"""The parameters of a converted model that fairseq's own attention lacks."""

import argparse
import re

# The parameters of attention that fairseq's own does not have.
OURS = re.compile(r".*_attn\.(?!(q|k|v|out)_proj\.|bias_[kv]$).*")


def own_parameters(parameters: dict, model, before: argparse.Namespace, after: argparse.Namespace) -> dict:
    """Returns the parameters that fairseq's attention lacks, from the checkpoint if it has them, else of the new model.

    ``before`` and ``after`` are the options of the checkpoint and of the converted model.
    """
    from ..config import site_options
    from ..modules import BuiltAttention, FastWeightSiteAttention

    own, old_options, new_options = {}, site_options(before), site_options(after)
    modules = model.named_modules()
    attentions = {f"{name}.": module for name, module in modules if isinstance(module, BuiltAttention)}
    for prefix, attention in attentions.items():
        new = {prefix + name: tensor for name, tensor in attention.state_dict().items()}
        kept = {}
        if isinstance(attention, FastWeightSiteAttention):
            mine, theirs = new_options[attention.site], old_options.get(attention.site)
            for deciding, entries in attention.memory.entries_by_options().items():
                same = theirs is not None and all(getattr(mine, name) == getattr(theirs, name) for name in deciding)
                names = [f"{prefix}memory.{name}" for name in entries]
                # All are kept or none, because random features belong to the seed that is saved with them.
                fits = all(name in parameters and parameters[name].shape == new[name].shape for name in names)
                kept |= dict.fromkeys(names, same and fits)
        dtype = parameters[f"{prefix}q_proj.weight"].dtype
        learned = {prefix + name for name, _ in attention.named_parameters()}
        for name, tensor in new.items():
            if name in kept:
                # Random directions stay float32.
                own[name] = parameters[name] if kept[name] else tensor.to(dtype) if name in learned else tensor
            elif OURS.fullmatch(name):
                old = parameters.get(name)
                fits = old is not None and old.shape == tensor.shape
                own[name] = old if fits else tensor.to(dtype) if name in learned else tensor
    return own

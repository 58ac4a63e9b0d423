"""Brings the attention flags of older checkpoints up to date.

Before 0.3.0 each option of a site had a flag of its own (``fwp_encoder_feature_map``), in place of one flag for each
site (``fwp_encoder``).
"""

from .kinds import Attention
from .options import OPTIONS, TRANSLATION_SITES, SiteOptions

_OLD = {f"fwp_{site}_{name}": (site, name) for site in TRANSLATION_SITES for name in OPTIONS}
_COMMON = {f"fwp_{name}": name for name, option in OPTIONS.items() if option.is_common and option.per_site}


def is_old(name: str) -> bool:
    """Returns True if a model option is a removed flag."""
    return name in _OLD


def upgraded(model: dict) -> dict:
    """Returns the options of a model with a kind for each site that had options of its own."""
    if not model.keys() & _OLD.keys():
        return model
    kept = {name: value for name, value in model.items() if name not in _OLD}
    common = {option: model[name] for name, option in _COMMON.items() if model.get(name) is not None}
    sites: dict[str, str | None] = {}
    for site in TRANSLATION_SITES if "encoder_layers" in model else ("decoder",):
        flags = {name: model.get(flag) for flag, (place, name) in _OLD.items() if place == site}
        # If it was not given, the flag of an option that only one site has stood at its default, not at None.
        own = {n: x for n, x in flags.items() if x is not None and (OPTIONS[n].is_common or x != OPTIONS[n].default)}
        usual = {name: value for name, value in common.items() if site in OPTIONS[name].sites}
        sites[f"fwp_{site}"] = str(Attention.of(SiteOptions(**usual | own))) if own else None
    if all(sites.values()):  # no site takes the options for all
        kept |= {name: OPTIONS[option].default for name, option in _COMMON.items() if name in kept}
    return kept | sites

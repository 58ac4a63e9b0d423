"""fairseq's attention flags, made of the table of options, and how they resolve into the options of each site."""

from dataclasses import field, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from .contradictions import contradiction
from .feature_maps import FEATURE_MAPS, parameter_for
from .options import OPTIONS, SITES, Option, SiteOptions


def _field(name: str, option: Option, default, help_text: str):
    # Optional[X], not X | None, because fairseq's parser reads types by their printed form.
    kind = int if option.values is None else ChoiceEnum(list(option.values))
    metadata = {"help": help_text} | ({} if option.alone is None else {"argparse_const": option.alone})
    return name, kind if default is not None else Optional[kind], field(default=default, metadata=metadata)


def _flags(sites: tuple[str, ...]):
    options = [option for option in OPTIONS.values() if set(option.sites) & set(sites)]
    for option in options:
        what = "; ".join(f"{value}: {what}" for value, what in (option.values or {}).items())
        what += f"; without a value: {option.alone}" if option.alone else ""
        help_text = f"{option.help}{f' ({what})' if what else ''}"
        site = "" if option.is_common else f"{option.sites[0]}_"
        yield _field(f"fwp_{site}{option.name}", option, option.default, help_text)
    for option in options if len(sites) > 1 else ():
        if option.is_common and option.per_site:
            for site in option.sites:
                help_text = f"{option.title} of {SITES[site]} only (default: the common one)"
                yield _field(f"fwp_{site}_{option.name}", option, None, help_text)


def _config(name: str, sites: tuple[str, ...]) -> type:
    return make_dataclass(name, _flags(sites), bases=(FairseqDataclass,), namespace={"__module__": __name__})


# The attention flags of translation models: those for all sites, and those of each site.
FastWeightConfig = _config("FastWeightConfig", tuple(SITES))
# Those of language models, whose one site needs no flags beside the common ones and its own.
DecoderOnlyConfig = _config("DecoderOnlyConfig", ("decoder",))


def _value(cfg, name: str):
    value = getattr(cfg, name, None)
    return value if value is None or isinstance(value, int) else str(value)


def _common(cfg, option: Option):
    value = _value(cfg, f"fwp_{option.name}") if option.is_common else None
    return option.default if value is None else value


def _own(cfg, site: str, option: Option):
    """What the site's own flag says; None if it says nothing, or there is none."""
    if site not in option.sites or not option.per_site:
        return None
    value = _value(cfg, f"fwp_{site}_{option.name}")
    return value if option.is_common or value != option.default else None


def _chosen(cfg, site: str, option: Option):
    own = _own(cfg, site, option)
    if own is not None:
        return own
    return _common(cfg, option) if site in option.sites else option.default


def _flag(cfg, site: str, name: str) -> str:
    """The flag that determines an option of the site: the site's own if given, else the common one."""
    option = OPTIONS[name]
    return option.flag(None if _own(cfg, site, option) is None else site)


def _narrowest_flag(cfg, site: str, name: str) -> str:
    """The flag that changes an option at as few sites as can be: the site's own if the model has one."""
    option = OPTIONS[name]
    return option.flag(site if hasattr(cfg, f"fwp_{site}_{name}") else None)


def _softmax_conflict(flag: str, value, map_flags: str) -> ValueError:
    """The error for a fast-weight option whose sites all have softmax attention."""
    return ValueError(f"{flag} {value} contradicts {map_flags} softmax: stock attention has none; drop one of the two")


def absent_sites(cfg) -> dict[str, str]:
    """The sites of :data:`SITES` that a model with these options does not have, each with the reason."""
    if not hasattr(cfg, "encoder_layers"):
        return dict.fromkeys(("encoder", "cross"), "a language model")
    absent = {}
    if not cfg.encoder_layers:
        absent["encoder"] = "with --encoder-layers 0"
    if not cfg.decoder_layers:
        absent |= dict.fromkeys(("decoder", "cross"), "with --decoder-layers 0")
    if cfg.no_cross_attention:
        absent["cross"] = "with --no-cross-attention"
    return absent


def site_maps(cfg) -> dict[str, str]:
    """The feature map ("softmax" included) of every site that a model with these options has."""
    absent = absent_sites(cfg)
    return {site: _chosen(cfg, site, OPTIONS["feature_map"]) for site in SITES if site not in absent}


def site_fast_net(cfg, site: str) -> tuple:
    """The options of a site that its fast net, with its feedback, has its parameters from."""
    return tuple(_chosen(cfg, site, OPTIONS[name]) for name in ("fast_net", "fast_net_depth", "recurrent"))


def site_config(cfg, site: str, d_key: int) -> SiteOptions:
    """Resolves the options of one site (``encoder``, ``decoder`` or ``cross``): its own where given, else the common.

    Args:
        cfg: anything with the attributes of :class:`FastWeightConfig`.
        d_key: width of a head at this site.

    Raises:
        ValueError: an option cannot have its value, the feature map cannot have its width, or flags contradict each
            other; the message names the flags.
    """
    found = SiteOptions(**{name: _chosen(cfg, site, option) for name, option in OPTIONS.items()})
    for name, option in OPTIONS.items():  # which fairseq's parser has checked, unless they come from --model-overrides
        value = getattr(found, name)
        if name == "feature_map" and value in FEATURE_MAPS:  # also the identity, which no flag names
            continue
        if (expected := option.expected(value)) is not None:
            raise ValueError(f"{_flag(cfg, site, name)} {value}: expected {expected}")
    map_flag = _flag(cfg, site, "feature_map")
    if found.is_softmax:
        for option in OPTIONS.values():
            if not option.of_softmax and (own := _own(cfg, site, option)) is not None:
                raise _softmax_conflict(option.flag(site), own, map_flag)
    elif found.d_dot is not None:
        try:
            parameter_for(found.feature_map, d_key, found.d_dot)
        except ValueError as error:
            raise ValueError(
                f"{_flag(cfg, site, 'd_dot')} {found.d_dot} does not fit {map_flag} {found.feature_map} at the "
                f"{site} site: {error}"
            ) from None
    if wrong := contradiction(found, site):
        flags = [f"{_flag(cfg, site, name)} {getattr(found, name)}" for name in wrong.options]
        raise ValueError(
            f"{' contradicts '.join(flags)} at the {site} site: {wrong.why}; expected "
            f"{_narrowest_flag(cfg, site, wrong.options[0])} {wrong.expected}"
        )
    return found


def check_flags(cfg) -> None:
    """Raises ValueError for a flag that would have no effect.

    Such a flag belongs to a site that the model does not have, or it sets a common option while every site is softmax.
    """
    for site, cause in absent_sites(cfg).items():
        for option in OPTIONS.values():
            if (value := _own(cfg, site, option)) is not None:
                raise ValueError(
                    f"{option.flag(site)} {value}: this model, {cause}, has no {site} attention; "
                    "expected no flag of that site"
                )
    maps = site_maps(cfg)
    if set(maps.values()) != {"softmax"}:
        return
    map_flags = ", ".join(dict.fromkeys(_flag(cfg, site, "feature_map") for site in maps))
    for option in OPTIONS.values():
        if not option.of_softmax and (value := _common(cfg, option)) != option.default:
            raise _softmax_conflict(option.flag(), value, map_flags)

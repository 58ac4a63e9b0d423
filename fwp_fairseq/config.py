"""Makes fairseq's attention flags from the table of options, and resolves them into the options of each site."""

from dataclasses import field, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from .contradictions import contradiction
from .feature_maps import FEATURE_MAPS, parameter_for
from .kinds import KINDS, Attention
from .option import hyphens
from .options import OPTIONS, SITES, TRANSLATION_SITES, Option, SiteOptions

_COMMON = {name: option for name, option in OPTIONS.items() if option.is_common}


def _common_field(option: Option):
    what = "; ".join(f"{value}: {what}" for value, what in (option.values or {}).items())
    help_text = f"{option.help}{f' ({what})' if what else ''}"
    # Optional[X], not X | None, because fairseq's parser reads types by their printed form.
    kind = int if option.values is None else ChoiceEnum(list(option.values))
    kind = kind if option.default is not None else Optional[kind]
    return f"fwp_{option.name}", kind, field(default=option.default, metadata={"help": help_text})


def _site_field(site: str, first: bool):
    options = [hyphens(name) for name, option in OPTIONS.items() if option.per_site and site in option.sites]
    kinds = "; ".join(f"{name}: {kind.description}" for name, kind in KINDS.items()) if first else ", ".join(KINDS)
    help_text = (
        f"the kind of {SITES[site]}, followed by a comma and OPTION=VALUE for each option to change, as in "
        f"delta,beta-range=0-2; without a kind, the options change the attention chosen by the architecture or by the "
        f"flags for all sites (kinds: {kinds}; options: {', '.join(options)})"
    )
    return f"fwp_{site}", Optional[str], field(default=None, metadata={"help": help_text})


def _config(name: str, sites: tuple[str, ...]) -> type:
    flags = [*map(_common_field, _COMMON.values()), *(_site_field(site, site == sites[0]) for site in sites)]
    return make_dataclass(name, flags, bases=(FairseqDataclass,), namespace={"__module__": __name__})


# The attention flags of translation models: flags for all sites, and one flag for each site.
FastWeightConfig = _config("FastWeightConfig", TRANSLATION_SITES)
# The attention flags of language models, which have one site.
DecoderOnlyConfig = _config("DecoderOnlyConfig", ("decoder",))


def _value(cfg, name: str):
    value = getattr(cfg, name, None)
    return value if value is None or isinstance(value, int) else str(value)


def common_options(cfg) -> dict[str, str | int]:
    """Returns those flags for all sites that are set, by the names of their options."""
    values = {name: _value(cfg, f"fwp_{name}") for name in _COMMON}
    return {name: value for name, value in values.items() if value is not None}


def attention_of_flags(cfg, site: str) -> Attention:
    """Parses the flag of a site. Raises ValueError, which names the flag, if it is not valid."""
    text = getattr(cfg, f"fwp_{site}", None)
    try:
        return Attention() if text is None else Attention.parse(str(text))
    except ValueError as error:
        raise ValueError(f"--fwp-{site} {text}: {error}") from None


def _options(cfg, site: str) -> SiteOptions:
    common = {name: x for name, x in common_options(cfg).items() if site in OPTIONS[name].sites}
    return attention_of_flags(cfg, site).options(common)


def with_common(cfg, site: str, attention: Attention) -> Attention:
    """Returns the attention, in which the flags for all sites replace the options that they set, where it has them."""
    common = {
        name: x for name, x in common_options(cfg).items() if OPTIONS[name].per_site and site in OPTIONS[name].sites
    }
    if attention.kind is None:  # the flags for all sites describe it anyway
        return Attention(None, {name: x for name, x in attention.changes.items() if name not in common})
    softmax = attention.options().is_softmax
    return attention.changed({name: x for name, x in common.items() if OPTIONS[name].of_softmax or not softmax})


def absent_sites(cfg) -> dict[str, str]:
    """Lists the sites of :data:`SITES` that a model with these options does not have, each with the reason."""
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


def site_options(cfg) -> dict[str, SiteOptions]:
    """Returns the options of every site that a model with these options has, unchecked."""
    absent = absent_sites(cfg)
    return {site: _options(cfg, site) for site in SITES if site not in absent}


def _phrase(cfg, site: str, name: str, value) -> str:
    """Returns an option as it is written: after the kind, or in the flag that sets it."""
    attention, option = attention_of_flags(cfg, site), hyphens(name)
    if attention.kind is not None and OPTIONS[name].per_site:
        return f"{option}={value}"
    own = name in attention.changes or not OPTIONS[name].is_common
    return f"--fwp-{site} {option}={value}" if own else f"--fwp-{option} {value}"


def _refusal(cfg, site: str, message: str) -> ValueError:
    attention = attention_of_flags(cfg, site)
    return ValueError(message if attention.kind is None else f"--fwp-{site} {attention}: {message}")


def options_of_site(cfg, site: str, d_key: int) -> SiteOptions:
    """Resolves the options of one site (``encoder``, ``decoder`` or ``cross``).

    They are those of the kind that the site's flag names, or without a kind the flags for all sites. The options that
    follow in the site's flag take precedence over both.

    Args:
        cfg: anything with the attributes of :class:`FastWeightConfig`.
        d_key: width of a head at this site.

    Raises:
        ValueError: an option cannot have its value, the feature map cannot have its width, or flags contradict each
            other; the message names the flags.
    """
    options, attention = _options(cfg, site), attention_of_flags(cfg, site)
    for name, option in OPTIONS.items():  # fairseq's parser has checked the values, except those of --model-overrides
        value = getattr(options, name)
        if name == "feature_map" and value in FEATURE_MAPS:  # also the identity, which no flag names
            continue
        if (expected := option.expected(value)) is not None:
            raise ValueError(f"{_phrase(cfg, site, name, value)}: expected {expected}")

    def phrase(name: str) -> str:
        return _phrase(cfg, site, name, getattr(options, name))

    if options.is_softmax:
        for name in (KINDS[attention.kind].options if attention.kind else {}) | attention.changes:
            if not OPTIONS[name].of_softmax:
                raise _refusal(cfg, site, _softmax_conflict(phrase(name), phrase("feature_map")))
    elif options.d_dot is not None:
        try:
            parameter_for(options.feature_map, d_key, options.d_dot)
        except ValueError as error:
            does_not_fit = f"{phrase('d_dot')} does not fit {phrase('feature_map')} at the {site} site: {error}"
            raise _refusal(cfg, site, does_not_fit) from None
    if wrong := contradiction(options, site):
        conflict = " contradicts ".join(map(phrase, wrong.options))
        expected = f"expected {hyphens(wrong.options[0])} {wrong.expected}"
        raise _refusal(cfg, site, f"{conflict} at the {site} site: {wrong.why}; {expected}")
    return options


def _softmax_conflict(what: str, maps: str) -> str:
    return f"{what} contradicts {maps}: softmax attention has no fast weights; expected another kind, or no such option"


def check_flags(cfg) -> None:
    """Raises ValueError for a flag that would have no effect.

    Either the model does not have the site of the flag, or the flag is for all sites and each site has a kind.
    """
    for site, cause in absent_sites(cfg).items():
        if (text := getattr(cfg, f"fwp_{site}", None)) is not None:
            raise ValueError(
                f"--fwp-{site} {text}: this model, {cause}, has no {site} attention; expected no flag of that site"
            )
    sites = site_options(cfg)
    for name, value in common_options(cfg).items():
        option = _COMMON[name]
        users = [site for site, x in sites.items() if (option.of_softmax or not x.is_softmax) and site in option.sites]
        if value == option.default or any(getattr(sites[site], name) == value for site in users):
            continue
        flag = f"--fwp-{hyphens(name)} {value}"
        with_kind = [f"--fwp-{s} {a}" for s in sites if (a := attention_of_flags(cfg, s)).kind is not None]
        if not users:
            maps = [] if len(with_kind) == len(sites) else ["--fwp-feature-map softmax"]
            raise ValueError(_softmax_conflict(flag, ", ".join([*maps, *with_kind])))
        others = [f"--fwp-{site} {attention_of_flags(cfg, site)}" for site in users]
        raise ValueError(
            f"{flag} has no effect, because no site takes it ({', '.join(others)}); expected no such flag, or the "
            f"option after the kind: {others[0]},{hyphens(name)}={value}"
        )

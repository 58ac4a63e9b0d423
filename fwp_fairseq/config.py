"""Defines the attention flags, and resolves them into the configuration of each of the three attention sites."""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from .feature_maps import FEATURE_MAPS, parameter_for
from .layers.site_config import (
    BETA_RANGES,
    DIRECTIONS,
    FAST_NETS,
    NORMALIZERS,
    OUTPUT_NORMS,
    PASSES,
    QK_NORMS,
    RECURRENT,
    UPDATE_RULES,
    SiteConfig,
)
from .ops import RULES
from .ops.backends import CHOICES as BACKENDS

# Name to what help texts call it.
SITES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
# Each of them can be set for one site alone; what help texts call it.
_OPTIONS = {
    "feature_map": "feature map",
    "d_dot": "d_dot",
    "update_rule": "update rule",
    "normalizer": "normaliser",
    "qk_norm": "norm of queries and keys",
    "output_norm": "norm of what is read",
    "fast_net": "fast net",
    "fast_net_depth": "blocks of the fast net mlp",
    "recurrent": "feedback of the output",
    "beta_range": "range of beta",
    "window": "window read by softmax",
    "directions": "directions of random features",
    "passes": "passes through the source",
}

# This file writes Optional[X], not X | None, because fairseq's parser reads types by their printed form.
# The identity map is for callers of the operators who compute features themselves; it makes no sense as a flag.
_MAPS = {name: FEATURE_MAPS[name] for name in ("elu", "dpfp", "favor", "relu", "t2r", "hedgehog", "rfa")}
_titles = ", ".join(f"{name} ({cls.title})" for name, cls in _MAPS.items())
_widths = "; ".join(f"{name}: {cls.widths}" for name, cls in _MAPS.items())
FeatureMapChoice = ChoiceEnum(["softmax", *_MAPS])
UpdateRuleChoice = ChoiceEnum(list(RULES))
QkNormChoice = ChoiceEnum(list(QK_NORMS))
OutputNormChoice = ChoiceEnum(list(OUTPUT_NORMS))
FastNetChoice = ChoiceEnum(list(FAST_NETS))
RecurrentChoice = ChoiceEnum(list(RECURRENT))
BetaRangeChoice = ChoiceEnum(list(BETA_RANGES))
DirectionsChoice = ChoiceEnum(list(DIRECTIONS))
PassesChoice = ChoiceEnum(list(PASSES))
BackendChoice = ChoiceEnum(list(BACKENDS))

NormalizerChoice = ChoiceEnum(["auto", *NORMALIZERS])
_rules = ", ".join(f"{rule} ({UPDATE_RULES[rule][0]})" for rule in RULES)
_nets = ", ".join(f"{net} ({what})" for net, (what, _) in FAST_NETS.items())
_usual_normalizers = ", ".join(f"{UPDATE_RULES[rule][1]} for {rule}" for rule in RULES)


@dataclass
class _CommonConfig(FairseqDataclass):
    fwp_feature_map: FeatureMapChoice = field(
        default="dpfp",
        metadata={
            "help": f"feature map phi at all three attention sites: {_titles}, or softmax for stock attention. "
            "Fast weights have no attention weights to drop: there --attention-dropout acts on the values read"
        },
    )
    fwp_d_dot: Optional[int] = field(
        default=None,
        metadata={"help": f"features per head, d_dot: {_widths} (default: the map's natural width)"},
    )
    fwp_update_rule: UpdateRuleChoice = field(
        default="sum",
        metadata={"help": f"how a key-value pair enters the fast weights: {_rules}"},
    )
    fwp_normalizer: NormalizerChoice = field(
        default="auto",
        metadata={
            "help": "attention (divide by the accumulated keys), sum (divide features by their sum), both, none, "
            "l2 (divide features by their length); auto: the paper's choice for the update rule, "
            f"{_usual_normalizers}"
        },
    )
    fwp_qk_norm: QkNormChoice = field(
        default="none",
        metadata={
            "help": "l2: divide queries and keys by their length before the feature map, and multiply them by a "
            "learned scale of each head; refused for maps from which the scale cancels (dpfp, relu)"
        },
    )
    fwp_output_norm: OutputNormChoice = field(
        default="none",
        metadata={
            "help": "rms: divide what each head reads by its root mean square, and multiply it by learned weights, "
            "in place of a denominator"
        },
    )
    fwp_fast_net: FastNetChoice = field(
        default="linear",
        metadata={
            "help": f"what the slow net writes at each position: {_nets}; others than linear are for the decoder's "
            "self-attention, with the delta rule (Irie et al. 2021), or for fwp1991 the sum rule"
        },
    )
    fwp_fast_net_depth: Optional[int] = field(
        default=None, metadata={"help": "blocks of the fast net mlp (default: 1)"}
    )
    fwp_recurrent: RecurrentChoice = field(
        default="none",
        metadata={
            "help": "adds what was read at the previous position to queries, keys, values and write strengths, through "
            "tanh (the flag alone) or softmax: with --fwp-fast-net linear the Recurrent Delta Net; for the decoder's "
            "self-attention, with the delta rule",
            "argparse_const": "tanh",
        },
    )
    fwp_beta_range: BetaRangeChoice = field(
        default="0-1",
        metadata={
            "help": "write strengths of the delta and gated_delta rules: 0-1, or 0-2, where a write above 1 gives what "
            "the key held the opposite sign; meant for keys of length 1 (--fwp-normalizer l2)"
        },
    )
    fwp_window: Optional[int] = field(
        default=None,
        metadata={
            "help": "the latest N positions are read by a softmax, only those before through fast weights; for the "
            "decoder's self-attention, with the sum rule; --fwp-decoder-window if other sites have fast weights too "
            "(default: none)"
        },
    )
    fwp_directions: DirectionsChoice = field(
        default="redrawn",
        metadata={
            "help": "random features (favor, rfa): redrawn, training draws other directions for each update; fixed, it "
            "uses those that evaluation uses"
        },
    )
    fwp_passes: PassesChoice = field(
        default="one",
        metadata={
            "help": "one: the encoder writes a whole source, then reads; both-ways: half of the heads write and read "
            "from the first position to the last, the others from the last to the first; for encoder self-attention "
            "(--fwp-encoder-passes), with a rule whose writes depend on their order"
        },
    )
    fwp_backend: BackendChoice = field(
        default="auto",
        metadata={"help": "implementation of the operator: auto picks the fastest that supports the inputs"},
    )


def _flags_of_sites():
    kinds = {option.name: option.type for option in fields(_CommonConfig)}
    common = {option.name.removeprefix("fwp_"): option.metadata for option in fields(_CommonConfig)}
    for option, what in _OPTIONS.items():
        for site, where in SITES.items():
            metadata = {**common[option], "help": f"{what} of {where} only (default: the common one)"}
            yield f"fwp_{site}_{option}", Optional[kinds[f"fwp_{option}"]], field(default=None, metadata=metadata)


# Every attention flag: the common ones, and each option of :data:`_OPTIONS` for each site.
FastWeightConfig = make_dataclass(
    "FastWeightConfig", _flags_of_sites(), bases=(_CommonConfig,), namespace={"__module__": __name__}
)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _value(cfg, name: str):
    value = getattr(cfg, name, None)
    return value if value is None or isinstance(value, int) else str(value)


def _common(cfg, option: str):
    value = _value(cfg, f"fwp_{option}")
    return FastWeightConfig.__dataclass_fields__[f"fwp_{option}"].default if value is None else value


def _option_flag(cfg, site: str, option: str) -> str:
    """The flag that determines an option of the site: the site's own if given, else the common one."""
    return _flag(f"fwp_{option}" if _value(cfg, f"fwp_{site}_{option}") is None else f"fwp_{site}_{option}")


def _map_flag(cfg, site: str) -> str:
    """The flag that determines the site's feature map."""
    return _option_flag(cfg, site, "feature_map")


def _softmax_conflict(flag: str, value, option: str, map_flags: str) -> ValueError:
    """The error for a fast-weight option whose sites all have softmax attention."""
    return ValueError(
        f"{flag} {value} contradicts {map_flags} softmax: stock attention has no {option}; drop one of the two"
    )


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
    common, absent = _common(cfg, "feature_map"), absent_sites(cfg)
    return {site: _value(cfg, f"fwp_{site}_feature_map") or common for site in SITES if site not in absent}


def site_fast_net(cfg, site: str) -> tuple:
    """The options of a site that its fast net, with its feedback, has its parameters from."""
    names = ("fast_net", "fast_net_depth", "recurrent")
    own = {name: _value(cfg, f"fwp_{site}_{name}") for name in names}
    return tuple(_common(cfg, name) if value is None else value for name, value in own.items())


def site_config(cfg, site: str, d_key: int) -> SiteConfig:
    """Resolves the options of one site (``encoder``, ``decoder`` or ``cross``): its own where given, else the common.

    Args:
        cfg: anything with the attributes of :class:`FastWeightConfig`.
        d_key: width of a head at this site.

    Raises:
        ValueError: the feature map cannot have this width, or flags contradict each other; the message names the flags.
    """
    own = {option: _value(cfg, f"fwp_{site}_{option}") for option in _OPTIONS}
    chosen = {option: _common(cfg, option) if value is None else value for option, value in own.items()}
    found = SiteConfig(**chosen, backend=_common(cfg, "backend"))
    map_flag = _map_flag(cfg, site)
    if found.is_softmax:
        for option in list(_OPTIONS)[1:]:
            if own[option] is not None:
                raise _softmax_conflict(_flag(f"fwp_{site}_{option}"), own[option], option, map_flag)
        return found
    if found.d_dot is not None:
        try:
            parameter_for(found.feature_map, d_key, found.d_dot)
        except ValueError as error:
            raise ValueError(
                f"{_option_flag(cfg, site, 'd_dot')} {found.d_dot} does not fit {map_flag} {found.feature_map} at the "
                f"{site} site: {error}"
            ) from None
    _check_norms(cfg, site, found)
    return found


def _check_norms(cfg, site: str, found: SiteConfig) -> None:
    """Raises ValueError for a norm or normaliser that would have no effect at the site, or that it cannot have."""
    if contradiction := found.contradiction(site):
        flags = [f"{_option_flag(cfg, site, name)} {getattr(found, name)}" for name in contradiction.options]
        own = _flag(f"fwp_{site}_{contradiction.options[0]}")
        raise ValueError(
            f"{' contradicts '.join(flags)} at the {site} site: {contradiction.why}; expected {own} "
            f"{contradiction.expected}"
        )


def check_flags(cfg) -> None:
    """Raises ValueError for a flag that would have no effect.

    Such a flag belongs to a site that the model does not have, or it sets a common option while every site is softmax.
    """
    for site, cause in absent_sites(cfg).items():
        for option in _OPTIONS:
            value = _value(cfg, f"fwp_{site}_{option}")
            if value is not None:
                raise ValueError(
                    f"{_flag(f'fwp_{site}_{option}')} {value}: this model, {cause}, has no {site} attention; "
                    "expected no flag of that site"
                )
    maps = site_maps(cfg)
    if set(maps.values()) != {"softmax"}:
        return
    map_flags = ", ".join(dict.fromkeys(_map_flag(cfg, site) for site in maps))
    for option in (*list(_OPTIONS)[1:], "backend"):
        value = _common(cfg, option)
        if value != FastWeightConfig.__dataclass_fields__[f"fwp_{option}"].default:
            raise _softmax_conflict(_flag(f"fwp_{option}"), value, option, map_flags)

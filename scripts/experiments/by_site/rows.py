"""The rows of the table of BLEU by site: which kind of attention the encoder, the decoder and cross-attention have."""

from dataclasses import dataclass
from itertools import product

from scripts.common.commands import site_flags

SITES = ("encoder", "decoder", "cross")
# The learning rate of the preset `sites`.
LR = 3e-3

# Name to its flags at a site, by what follows the site's name in them.
KINDS = {
    "softmax": {"feature-map": "softmax"},
    "rotary": {"feature-map": "softmax", "positions": "rotary"},
    "dpfp": {"feature-map": "dpfp", "d-dot": 256, "update-rule": "sum", "normalizer": "attention"},
    "delta": {"feature-map": "dpfp", "d-dot": 256, "update-rule": "delta", "normalizer": "sum"},
    "hedgehog": {"feature-map": "hedgehog", "d-dot": 128, "update-rule": "sum", "normalizer": "attention"},
    "t2r": {"feature-map": "t2r", "d-dot": 128, "update-rule": "sum", "normalizer": "attention"},
    "window": {"feature-map": "hedgehog", "d-dot": 128, "update-rule": "sum", "normalizer": "attention", "window": 8},
    "favor": {"feature-map": "favor", "d-dot": 256, "update-rule": "sum", "normalizer": "attention", "qk-norm": "l2"},
}
KINDS["delta-rms"] = KINDS["delta"] | {"normalizer": "l2", "output-norm": "rms"}
KINDS["delta-both-ways"] = KINDS["delta"] | {"passes": "both-ways"}
KINDS["delta-elu"] = KINDS["delta-rms"] | {"feature-map": "elu", "d-dot": 64}
KINDS["delta-elu-both-ways"] = KINDS["delta-elu"] | {"passes": "both-ways"}
KINDS["gated-delta-elu"] = KINDS["delta-elu"] | {"update-rule": "gated_delta"}
KINDS["gated-delta-elu-both-ways"] = KINDS["gated-delta-elu"] | {"passes": "both-ways"}
KINDS["gated-delta"] = KINDS["delta"] | {"update-rule": "gated_delta"}
KINDS["favor-fixed"] = KINDS["favor"] | {"directions": "fixed"}
KINDS["favor-any-length"] = KINDS["favor-fixed"] | {"qk-norm": "none"}


@dataclass(frozen=True)
class SiteRow:
    """One model: the names of its three kinds of attention, its number of heads, and its dropout."""

    encoder: str
    decoder: str
    cross: str
    heads: int = 2
    dropout: float = 0.1

    # No one attention has all sites, so that records have these fields empty.
    feature_map = update_rule = normalizer = d_dot = None

    @property
    def name(self) -> str:
        others = [f"{self.heads}-heads"] * (self.heads != 2) + ["no-dropout"] * (not self.dropout)
        return "-".join([*self.sites.values(), *others])

    @property
    def sites(self) -> dict[str, str]:
        return {site: getattr(self, site) for site in SITES}

    @property
    def replaced(self) -> tuple[str, ...]:
        """The sites that do not have softmax attention."""
        return tuple(site for site, kind in self.sites.items() if kind != "softmax")

    @property
    def recorded(self) -> dict:
        """What its records hold of it."""
        return {"sites": self.sites, "heads": self.heads}

    @property
    def flags(self) -> dict:
        """The flags of fairseq-train for this model."""
        heads = {f"--{part}-attention-heads": self.heads for part in ("encoder", "decoder")}
        shared = {"--dropout": self.dropout} | heads
        return shared | site_flags({site: KINDS[kind] for site, kind in self.sites.items()})


def _everywhere(kind: str, heads: int = 2) -> SiteRow:
    return SiteRow(kind, kind, kind, heads)


def _family(*kinds: str) -> tuple[SiteRow, ...]:
    """These kinds of the encoder, the decoder and cross-attention at every set of sites, softmax at the others."""
    *rows, _ = (SiteRow(*row) for row in product(*((kind, "softmax") for kind in kinds)))
    return (*sorted(rows, key=lambda row: len(row.replaced), reverse=True),)


# What is tried at every set of sites: name to its rows.
FAMILIES = {
    "DPFP, sum rule": _family("dpfp", "dpfp", "dpfp"),
    "delta rule": _family("delta-elu-both-ways", "delta-elu", "delta-elu"),
}

ROWS = (
    _everywhere("softmax"),
    *(row for family in FAMILIES.values() for row in family),
    SiteRow("softmax", "window", "softmax"),
    SiteRow("softmax", "delta", "softmax"),
    SiteRow("softmax", "delta-rms", "softmax"),
    SiteRow("softmax", "gated-delta", "softmax"),
    SiteRow("delta-both-ways", "softmax", "softmax"),
    SiteRow("gated-delta-elu-both-ways", "gated-delta-elu", "softmax"),
    _everywhere("hedgehog"),
    _everywhere("t2r"),
    _everywhere("favor"),
    _everywhere("favor-fixed"),
    _everywhere("favor-any-length"),
    _everywhere("favor-fixed", heads=8),
    _everywhere("dpfp", heads=8),
    SiteRow("softmax", "softmax", "softmax", dropout=0.0),
    SiteRow("rotary", "rotary", "softmax", dropout=0.0),
    SiteRow("delta-elu-both-ways", "delta-elu", "softmax", dropout=0.0),
)

# What is tried from German into English.
DE_EN_ROWS = (
    _everywhere("softmax"),
    SiteRow("delta-elu-both-ways", "delta-elu", "softmax"),
    SiteRow("delta-elu-both-ways", "delta-elu", "delta-elu"),
)

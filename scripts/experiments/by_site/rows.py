"""The rows of the table of BLEU by site: which kind of attention the encoder, the decoder and cross-attention have."""

from dataclasses import dataclass
from itertools import product

from scripts.common.commands import site_flags

SITES = ("encoder", "decoder", "cross")
# The learning rate of the preset `sites`.
LR = 3e-3

DPFP, FAVOR, T2R = "dpfp,d-dot=256", "favor,d-dot=256,qk-norm=l2", "t2r,d-dot=128"
BOTH_WAYS = ",passes=both-ways"
DELTA_BOTH_WAYS = "delta" + BOTH_WAYS
DPFP_DELTA, DPFP_DELTA_NORMED = f"{DPFP},update-rule=delta", f"delta,feature-map={DPFP}"
DPFP_GATED_DELTA = f"{DPFP},update-rule=gated_delta,normalizer=sum"
FAVOR_FIXED = f"{FAVOR},directions=fixed"
# Earlier records have the field `sites`, with these names of kinds, in place of `kinds`.
RECORDED = {
    "softmax": "softmax",
    "rotary": "softmax-rotary",
    "dpfp": DPFP,
    "delta": DPFP_DELTA,
    "hedgehog": "hedgehog",
    "t2r": T2R,
    "window": "hedgehog-window",
    "favor": FAVOR,
    "delta-rms": DPFP_DELTA_NORMED,
    "delta-both-ways": DPFP_DELTA + BOTH_WAYS,
    "delta-elu": "delta",
    "delta-elu-both-ways": DELTA_BOTH_WAYS,
    "gated-delta-elu": "gated-delta",
    "gated-delta-elu-both-ways": "gated-delta" + BOTH_WAYS,
    "gated-delta": DPFP_GATED_DELTA,
    "favor-fixed": FAVOR_FIXED,
    "favor-any-length": "favor,d-dot=256,directions=fixed",
}


@dataclass(frozen=True)
class SiteRow:
    """One model: its three kinds of attention, its number of heads, and its dropout."""

    encoder: str
    decoder: str
    cross: str
    heads: int = 2
    dropout: float = 0.1

    # No one attention has all sites, so that records have these fields empty.
    feature_map = update_rule = normalizer = d_dot = None

    @property
    def name(self) -> str:
        kinds = dict.fromkeys(self.sites.values()) if len({*self.sites.values()}) == 1 else self.sites.values()
        return "_".join([*kinds, *self._others])

    @property
    def recorded_name(self) -> str:
        """Its name in records in which kinds have those of RECORDED."""
        old = {kind: name for name, kind in RECORDED.items()}
        return "-".join([*map(old.get, self.sites.values()), *self._others])

    @property
    def _others(self) -> list[str]:
        return [f"{self.heads}-heads"] * (self.heads != 2) + ["no-dropout"] * (not self.dropout)

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
        return {"kinds": self.sites, "heads": self.heads}

    @property
    def flags(self) -> dict:
        """The flags of fairseq-train for this model."""
        heads = {f"--{part}-attention-heads": self.heads for part in ("encoder", "decoder")}
        return {"--dropout": self.dropout} | heads | site_flags(self.sites)


def _everywhere(kind: str, heads: int = 2) -> SiteRow:
    return SiteRow(kind, kind, kind, heads)


def _family(*kinds: str) -> tuple[SiteRow, ...]:
    """These kinds of the encoder, the decoder and cross-attention at every set of sites, softmax at the others."""
    *rows, _ = (SiteRow(*row) for row in product(*((kind, "softmax") for kind in kinds)))
    return (*sorted(rows, key=lambda row: len(row.replaced), reverse=True),)


# What is tried at every set of sites: name to its rows.
FAMILIES = {
    "DPFP, sum rule": _family(DPFP, DPFP, DPFP),
    "delta rule": _family(DELTA_BOTH_WAYS, "delta", "delta"),
}

ROWS = (
    _everywhere("softmax"),
    *(row for family in FAMILIES.values() for row in family),
    SiteRow("softmax", "hedgehog-window", "softmax"),
    SiteRow("softmax", DPFP_DELTA, "softmax"),
    SiteRow("softmax", DPFP_DELTA_NORMED, "softmax"),
    SiteRow("softmax", DPFP_GATED_DELTA, "softmax"),
    SiteRow(DPFP_DELTA + BOTH_WAYS, "softmax", "softmax"),
    SiteRow("gated-delta" + BOTH_WAYS, "gated-delta", "softmax"),
    _everywhere("hedgehog"),
    _everywhere(T2R),
    _everywhere(FAVOR),
    _everywhere(FAVOR_FIXED),
    _everywhere(RECORDED["favor-any-length"]),
    _everywhere(FAVOR_FIXED, heads=8),
    _everywhere(DPFP, heads=8),
    SiteRow("softmax", "softmax", "softmax", dropout=0.0),
    SiteRow("softmax-rotary", "softmax-rotary", "softmax", dropout=0.0),
    SiteRow(DELTA_BOTH_WAYS, "delta", "softmax", dropout=0.0),
)

# What is tried from German into English.
DE_EN_ROWS = (
    _everywhere("softmax"),
    SiteRow(DELTA_BOTH_WAYS, "delta", "softmax"),
    SiteRow(DELTA_BOTH_WAYS, "delta", "delta"),
)


def kinds_of(record: dict) -> dict[str, str]:
    """The kind of each site of a record's model."""
    return record.get("kinds") or {site: RECORDED[name] for site, name in record["sites"].items()}

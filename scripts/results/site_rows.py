"""The rows of the table of BLEU by site: which kind of attention the encoder, the decoder and cross-attention have."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

SITES = ("encoder", "decoder", "cross")

# Name to its flags at a site, by what follows the site's name in them.
KINDS = {
    "softmax": {"feature-map": "softmax"},
    "dpfp": {"feature-map": "dpfp", "d-dot": 256, "update-rule": "sum", "normalizer": "attention"},
    "delta": {"feature-map": "dpfp", "d-dot": 256, "update-rule": "delta", "normalizer": "sum"},
    "hedgehog": {"feature-map": "hedgehog", "d-dot": 128, "update-rule": "sum", "normalizer": "attention"},
    "slots": {"feature-map": "slots", "d-dot": 64, "update-rule": "sum", "normalizer": "attention"},
    "window": {"feature-map": "hedgehog", "d-dot": 128, "update-rule": "sum", "normalizer": "attention", "window": 8},
    "favor": {"feature-map": "favor", "d-dot": 256, "update-rule": "sum", "normalizer": "attention", "qk-norm": "l2"},
    "poly": {"feature-map": "poly", "d-dot": 495, "update-rule": "sum", "normalizer": "attention"},
}
KINDS["favor-fixed"] = KINDS["favor"] | {"directions": "fixed"}
# The width of the polynomial map grows with the fourth power of a head's width, so it has narrower heads.
HEADS = {"poly": 16}
# Kinds that not every site can have, or that are not tried at every set of sites; their rows are listed.
_OF_SOME_SITES = ("slots", "window", "favor", "favor-fixed")


@dataclass(frozen=True)
class SiteRow:
    """One model: the names of its three kinds of attention, and its number of heads."""

    encoder: str
    decoder: str
    cross: str
    heads: int = 2

    # What the rows of other tables have, where one attention has all sites.
    feature_map = update_rule = normalizer = d_dot = None

    @property
    def name(self) -> str:
        return "-".join([*self.sites.values(), *([f"{self.heads}-heads"] if self.heads != 2 else [])])

    @property
    def sites(self) -> dict[str, str]:
        return {site: getattr(self, site) for site in SITES}

    @property
    def recorded(self) -> dict:
        """What its records hold of it."""
        return {"sites": self.sites, "heads": self.heads}

    @property
    def flags(self) -> dict:
        """The flags of fairseq-train for this model."""
        heads = {f"--{part}-attention-heads": self.heads for part in ("encoder", "decoder")}
        return heads | {
            f"--fwp-{site}-{option}": value
            for site, kind in self.sites.items()
            for option, value in KINDS[kind].items()
        }


def _family(kind: str) -> tuple[SiteRow, ...]:
    """Softmax alone, then this kind at every set of sites, with softmax at the others; most sites first."""
    heads = HEADS.get(kind, 2)
    found = [SiteRow(*kinds, heads) for kinds in product((kind, "softmax"), repeat=3)]
    *others, softmax = sorted(found, key=lambda row: [*row.sites.values()].count("softmax"))
    return (softmax, *others)


ROWS = (
    *dict.fromkeys(row for kind in list(KINDS)[1:] if kind not in _OF_SOME_SITES for row in _family(kind)),
    SiteRow("slots", "window", "slots"),
    SiteRow("favor", "favor", "favor"),
    SiteRow("favor-fixed", "favor-fixed", "favor-fixed"),
    SiteRow("softmax", "window", "slots"),
    SiteRow("softmax", "window", "softmax"),
)

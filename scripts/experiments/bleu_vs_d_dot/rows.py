"""The rows of the tables of BLEU over d_dot, which are trained in this order, the most informative ones first."""

from dataclasses import dataclass

from scripts.common.commands import site_flags


@dataclass(frozen=True)
class Row:
    """One attention function, at all sites."""

    name: str
    feature_map: str
    d_dot: int | None = None
    update_rule: str | None = None
    normalizer: str | None = None

    @property
    def recorded(self) -> dict:
        return {}

    @property
    def flags(self) -> dict:
        """The flags of fairseq-train for this attention; none is left to its default."""
        return {
            "--fwp-feature-map": self.feature_map,
            "--fwp-d-dot": self.d_dot,
            "--fwp-update-rule": self.update_rule,
            "--fwp-normalizer": self.normalizer,
        }


def _sum(name: str, feature_map: str, d_dot: int) -> Row:
    """Returns a row with the sum rule and attention normalisation (Schlag et al. 2021, Sections 3.2 and 5)."""
    return Row(name, feature_map, d_dot, "sum", "attention")


def _delta(name: str, feature_map: str, d_dot: int) -> Row:
    """Returns a row with the delta rule, whose features are divided by their sum (Schlag et al. 2021, Section 4.2).

    The paper has no translation results for this rule.
    """
    return Row(name, feature_map, d_dot, "delta", "sum")


# For heads of 64, so that nu and m are those of the paper's Table 6.
ROWS = (
    Row("softmax", "softmax"),
    _sum("elu-64", "elu", 64),
    _sum("dpfp-256", "dpfp", 256),
    _sum("favor-256", "favor", 256),
    _delta("delta-dpfp-256", "dpfp", 256),
    _sum("dpfp-512", "dpfp", 512),
    _sum("favor-64", "favor", 64),
    _sum("favor-512", "favor", 512),
    _sum("dpfp-384", "dpfp", 384),
    _sum("favor-384", "favor", 384),
    _delta("delta-elu-64", "elu", 64),
    _delta("delta-dpfp-512", "dpfp", 512),
)
BY_NAME = {row.name: row for row in ROWS}


@dataclass(frozen=True)
class Hybrid:
    """An architecture ``..._hybrid``: this rule in the encoder and the decoder, softmax attention between them."""

    name: str
    arch: str
    update_rule: str

    # Its features and their widths are those of the architecture.
    feature_map, d_dot, normalizer = "hybrid", None, None

    @property
    def recorded(self) -> dict:
        return {}

    @property
    def flags(self) -> dict:
        rule = {"update-rule": self.update_rule}
        return {"--arch": self.arch, **site_flags({"encoder": rule, "decoder": rule})}


def with_hybrids(arch: str) -> tuple[Row | Hybrid, ...]:
    """Returns all rows, with the hybrids of this architecture after softmax attention; the paper has none of them."""
    softmax, *others = ROWS
    return softmax, Hybrid("hybrid", arch, "delta"), Hybrid("hybrid-gated", arch, "gated_delta"), *others

"""The rows of BLEU against d_dot, most telling first: what the recipe trains and what its table expects.

`python -m scripts.hydra.attention` writes them into Hydra's files.
"""

from __future__ import annotations

from dataclasses import dataclass

D_KEY = 64  # of every preset, so that Table 6's nu and m apply as they stand


@dataclass(frozen=True)
class Row:
    """One attention function, at all three sites. `model` is the paper's name of it; None: not in the paper."""

    name: str
    model: str | None
    feature_map: str
    d_dot: int | None = None
    update_rule: str | None = None
    normalizer: str | None = None

    @property
    def flags(self) -> dict:
        """Of fairseq-train; nothing is left to defaults."""
        return {
            "--fwp-feature-map": self.feature_map,
            "--fwp-d-dot": self.d_dot,
            "--fwp-update-rule": self.update_rule,
            "--fwp-normalizer": self.normalizer,
        }


def _sum(name: str, model: str, feature_map: str, d_dot: int) -> Row:
    """Sections 3.2 and 5 of Schlag et al. 2021: everything is added, and divided by the accumulated keys."""
    return Row(name, model, feature_map, d_dot, "sum", "attention")


def _delta(name: str, feature_map: str, d_dot: int) -> Row:
    """Section 4.2: features divided by their sum. The paper has no translation result for it."""
    return Row(name, None, feature_map, d_dot, "delta", "sum")


ROWS = (
    Row("softmax", "standard", "softmax"),
    _sum("elu-64", "linear", "elu", 64),
    _sum("dpfp-256", "dpfp", "dpfp", 256),
    _sum("favor-256", "performer", "favor", 256),
    _delta("delta-dpfp-256", "dpfp", 256),
    _sum("dpfp-512", "dpfp", "dpfp", 512),
    _sum("favor-64", "performer", "favor", 64),
    _sum("favor-512", "performer", "favor", 512),
    _sum("dpfp-384", "dpfp", "dpfp", 384),
    _sum("favor-384", "performer", "favor", 384),
    _delta("delta-elu-64", "elu", 64),
    _delta("delta-dpfp-512", "dpfp", 512),
)
BY_NAME = {row.name: row for row in ROWS}

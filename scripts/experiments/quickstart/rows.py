"""The models that the quick start trains from the beginning, and its scales."""

from dataclasses import dataclass, replace

from scripts.translation.preset import SMOKE_DECODING, TINY


@dataclass(frozen=True)
class Row:
    """One model: its flags of fairseq-train, and what they choose, for records."""

    name: str
    flags: dict
    feature_map: str
    update_rule: str | None = None
    d_dot = normalizer = None

    @property
    def recorded(self) -> dict:
        return {"variant": self.name, "arch": self.flags.get("--arch", TINY.model["--arch"])}


BASELINE = Row("baseline", {"--fwp-feature-map": "softmax"}, "softmax")
HYBRID = Row("hybrid", {"--arch": "fwp_transformer_tiny_hybrid"}, "elu", "delta")

QUICKSTART = replace(TINY, rows=(BASELINE, HYBRID))
# All steps, in under 3 minutes. The training ends within its first epoch, so it saves by updates, for `fwp average` to
# find a checkpoint.
SMOKE = replace(
    QUICKSTART,
    name="smoke",
    reference="raw/smoke.de",
    training=TINY.training
    | {"--warmup-updates": 10, "--max-tokens": 1000, "--max-update": 20, "--save-interval-updates": 20}
    | {"--log-interval": 1},
    tokens_per_update=1000,
    decoding=TINY.decoding | SMOKE_DECODING,
    test="test1",
    average=1,
)

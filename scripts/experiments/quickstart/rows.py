"""The models that the quick start trains from the beginning, and its scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scripts.translation.preset import SMOKE_DECODING, TINY


@dataclass(frozen=True)
class Row:
    """One model: its flags of fairseq-train, and what they choose, for records."""

    name: str
    flags: dict
    feature_map: str
    update_rule: str | None = None
    d_dot: int | None = None
    normalizer: None = None

    @property
    def recorded(self) -> dict:
        return {"variant": self.name, "arch": self.flags.get("--arch", TINY.model["--arch"])}


BASELINE = Row("baseline", {"--fwp-feature-map": "softmax"}, "softmax")
HYBRID = Row("hybrid", {"--arch": "fwp_transformer_tiny_hybrid"}, "elu", "delta")


def own(name: str, base: Row | None, flags: dict[str, str]) -> Row:
    """Returns a row of the user's own: what these flags change of another row, or of the architecture's defaults.

    Attention that differs between the sites, or is that of an architecture, is recorded by its flags.
    """
    base = base or Row(name, {}, "dpfp", "sum")
    chosen = {flag: value for flag, value in flags.items() if flag == "--arch" or flag.startswith("--fwp-")}
    if not chosen.keys() <= {"--fwp-feature-map", "--fwp-update-rule", "--fwp-d-dot"}:
        arch = {"--arch": flags["--arch"]} if "--arch" in flags else {}
        return Row(name, base.flags | arch, " ".join(word for one in chosen.items() for word in one))
    width = flags.get("--fwp-d-dot")
    return Row(
        name,
        base.flags,
        flags.get("--fwp-feature-map", base.feature_map),
        flags.get("--fwp-update-rule", base.update_rule),
        int(width) if width else None,
    )


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

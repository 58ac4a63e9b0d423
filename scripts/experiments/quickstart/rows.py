"""The models of the experiment quickstart, and its scales."""

from dataclasses import replace

from fwp_fairseq.options import TRANSLATION_SITES
from scripts.common.row import Row
from scripts.translation.preset import SMOKE_DECODING, TINY


def _row(name: str, arch: str, feature_map: str, update_rule: str | None, kinds: dict[str, str]) -> Row:
    fields = {"feature_map": feature_map, "update_rule": update_rule, "normalizer": None, "d_dot": None}
    return Row(name, kinds, {"--arch": arch}, fields | {"variant": name, "arch": arch})


BASELINE = _row("baseline", TINY.model["--arch"], "softmax", None, dict.fromkeys(TRANSLATION_SITES, "softmax"))
HYBRID = _row("hybrid", "fwp_transformer_tiny_hybrid", "elu", "delta", {})

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

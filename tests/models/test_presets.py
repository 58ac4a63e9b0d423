"""Tests the big presets of the paper's Table 1, and hybrids, with the flags of an ablation."""

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY

from fwp_fairseq.config import absent_sites, check_flags, options_of_site
from fwp_fairseq.options import SITES
from tests.models.helpers import arguments

SUM, DELTA = "update-rule=sum normalizer=attention", "update-rule=delta normalizer=sum"
DELTA_RMS = "elu d-dot=64 update-rule=delta normalizer=l2 output-norm=rms"
HYBRIDS = [f"fwp_transformer_{size}_hybrid" for size in ("wmt_en_de", "vaswani_wmt_en_de_big")]
OF_HYBRIDS = [
    ({}, [f"{DELTA_RMS} passes=both-ways", DELTA_RMS, "softmax"]),
    ({"fwp_feature_map": "softmax"}, ["softmax"] * 3),
    ({"fwp_feature_map": "elu"}, [f"elu d-dot=64 {SUM}"] * 3),
    ({"fwp_cross": "elu"}, [f"{DELTA_RMS} passes=both-ways", DELTA_RMS, f"elu d-dot=64 {SUM}"]),
    ({"fwp_encoder": "passes=one"}, [DELTA_RMS, DELTA_RMS, "softmax"]),
    (
        {"fwp_decoder": "dpfp,update-rule=delta"},
        [f"{DELTA_RMS} passes=both-ways", f"dpfp d-dot=128 {DELTA}", "softmax"],
    ),
    (
        {"fwp_update_rule": "gated_delta", "fwp_encoder": "passes=one"},
        [DELTA_RMS.replace("=delta", "=gated_delta")] * 2 + ["softmax"],
    ),
]


def big(name: str) -> str:
    return f"{name}_transformer_wmt_en_de_big"


@pytest.mark.parametrize(
    "arch, flags, described",
    [
        (big("performer"), {"fwp_feature_map": "elu"}, [f"elu d-dot=64 {SUM}"] * 3),
        (big("delta"), {"fwp_feature_map": "softmax"}, ["softmax"] * 3),
        (big("delta"), {"fwp_feature_map": "elu"}, [f"elu d-dot=64 {SUM}"] * 3),
        (big("delta"), {"fwp_update_rule": "sum"}, [f"dpfp d-dot=256 {SUM}"] * 3),
        (big("delta"), {"fwp_encoder": "softmax"}, ["softmax", *[f"dpfp d-dot=256 {DELTA}"] * 2]),
        (
            big("delta"),
            {f"fwp_{site}": "softmax" for site in ("encoder", "decoder", "cross")},
            ["softmax"] * 3,
        ),
        (
            big("dpfp"),
            {"fwp_cross": "elu", "fwp_decoder": "d-dot=384"},
            [f"dpfp d-dot=256 {SUM}", f"dpfp d-dot=384 {SUM}", f"elu d-dot=64 {SUM}"],
        ),
        *((arch, *row) for arch in HYBRIDS for row in OF_HYBRIDS),
    ],
    ids=str,
)
def test_one_flag_changes_the_map_of_a_preset(arch, flags, described):
    """The preset's width and rule are dropped together with its map, because the user did not give them."""
    args = arguments(arch, **flags)
    saved = dict(vars(args))
    ARCH_CONFIG_REGISTRY[arch](args)  # as fairseq does once more when it loads a checkpoint
    assert vars(args) == saved
    check_flags(args)
    sites = [site for site in SITES if site not in absent_sites(args)]
    assert [options_of_site(args, site, 64).describe(64).removeprefix("feature-map=") for site in sites] == described


def test_a_width_that_the_user_gave_does_not_give_way():
    args = arguments(big("performer"), fwp_feature_map="elu", fwp_d_dot=256)
    with pytest.raises(ValueError, match="--fwp-d-dot 256 does not fit --fwp-feature-map elu"):
        options_of_site(args, "encoder", 64)

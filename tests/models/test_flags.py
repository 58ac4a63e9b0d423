"""Contradictory flags, and checkpoints trained with other flags, are refused with an error that names both."""

from dataclasses import fields

import pytest
import torch

from fwp_fairseq.config import FastWeightConfig
from fwp_fairseq.models.attention_flags import BUFFER
from fwp_fairseq.models.fwp_language_model import FwpLanguageModelConfig
from fwp_fairseq.modules import SiteAttention
from fwp_fairseq.options import OPTIONS
from tests.models.helpers import build

CONTRADICTIONS = {
    "delta-everywhere-softmax": (
        {"fwp_feature_map": "softmax", "fwp_update_rule": "delta"},
        ("--fwp-update-rule delta", "--fwp-feature-map softmax"),
    ),
    "delta-at-a-softmax-site": (
        {"fwp_cross_feature_map": "softmax", "fwp_cross_update_rule": "delta"},
        ("--fwp-cross-update-rule delta", "--fwp-cross-feature-map softmax"),
    ),
    "impossible-width": (
        {"fwp_feature_map": "dpfp", "fwp_d_dot": 25},
        ("--fwp-d-dot 25", "--fwp-feature-map dpfp", "nearest possible: 24 and 36"),
    ),
    "common-width-does-not-fit-one-site": (
        {"fwp_feature_map": "dpfp", "fwp_d_dot": 24, "fwp_cross_feature_map": "elu"},
        ("--fwp-d-dot 24", "--fwp-cross-feature-map elu", "cross site"),
    ),
    "width-of-an-absent-cross-attention": (
        {"no_cross_attention": True, "fwp_cross_d_dot": 96},
        ("--fwp-cross-d-dot 96", "--no-cross-attention", "no cross attention"),
    ),
    "norm-where-it-is-idle": (
        {"fwp_qk_norm": "l2", "fwp_feature_map": "favor", "fwp_cross_feature_map": "dpfp"},
        ("--fwp-qk-norm l2", "--fwp-cross-feature-map dpfp", "cross site", "--fwp-cross-qk-norm none"),
    ),
    "range-of-beta-without-a-correction": (
        {"fwp_beta_range": "0-2", "fwp_update_rule": "delta", "fwp_cross_update_rule": "gated"},
        ("--fwp-beta-range 0-2", "--fwp-cross-update-rule gated", "cross site", "--fwp-cross-beta-range 0-1"),
    ),
    "directions-of-a-map-without-any": (
        {"fwp_feature_map": "favor", "fwp_directions": "fixed", "fwp_cross_feature_map": "elu"},
        ("--fwp-directions fixed", "--fwp-cross-feature-map elu", "cross site", "--fwp-cross-directions redrawn"),
    ),
    "passes-of-a-sum": (
        {"fwp_encoder_passes": "both-ways"},
        ("--fwp-encoder-passes both-ways contradicts --fwp-update-rule sum", "a sum has no order"),
    ),
    "both-ways-with-an-odd-number-of-heads": (
        {"fwp_encoder_passes": "both-ways", "fwp_update_rule": "delta", "encoder_attention_heads": 3},
        ("--fwp-encoder-passes both-ways contradicts --encoder-attention-heads 3", "expected an even number"),
    ),
    "window-of-the-source-of-fast-weights": (
        {"fwp_cross_source_window": 8, "fwp_feature_map": "elu"},
        ("--fwp-cross-source-window 8", "--fwp-feature-map elu", "keep no positions"),
    ),
    "window-of-the-source-of-no-positions": (
        {"fwp_cross_source_window": 0, "fwp_feature_map": "softmax"},
        ("--fwp-cross-source-window 0", "expected --fwp-cross-source-window 1 or more"),
    ),
    "positions-of-fast-weights": (
        {"fwp_positions": "rotary", "fwp_encoder_feature_map": "softmax"},
        ("--fwp-positions rotary", "--fwp-feature-map dpfp", "decoder site", "--fwp-decoder-positions none"),
    ),
    "convolutions-of-cross-attention-that-has-none-of-no-size": (
        {"fwp_conv_size": 0},
        ("--fwp-conv-size 0", "encoder site", "--fwp-encoder-conv-size 1 or more"),
    ),
    "heads-that-do-not-divide-the-width": (
        {"decoder_attention_heads": 5},
        ("--decoder-attention-heads 5: expected a divisor of the model's width",),
    ),
    "no-such-backend": ({"fwp_backend": "referenc"}, ("--fwp-backend referenc: expected one of auto, native",)),
    "width-that-is-no-number": ({"fwp_decoder_d_dot": "x"}, ("--fwp-decoder-d-dot x: expected a whole number",)),
    "no-heads": ({"encoder_attention_heads": 0}, ("--encoder-attention-heads 0: expected a divisor",)),
    "cross-self-attention": (
        {"cross_self_attention": True, "no_cross_attention": True},
        ("--cross-self-attention", "--fwp-decoder-feature-map softmax"),
    ),
}


def test_there_is_no_flag_that_can_only_be_refused():
    flags = {option.name for option in fields(FastWeightConfig) if option.name.startswith("fwp_")}
    common = {f"fwp_{name}" for name, option in OPTIONS.items() if len(option.sites) > 1}
    own = {f"fwp_{site}_{name}" for name, option in OPTIONS.items() if option.per_site for site in option.sites}
    assert flags == common | own
    language_models = {option.name for option in fields(FwpLanguageModelConfig) if option.name.startswith("fwp_")}
    assert language_models == {
        f"fwp_{name}" if len(option.sites) > 1 else f"fwp_decoder_{name}"
        for name, option in OPTIONS.items()
        if "decoder" in option.sites
    }


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(name):
    flags, named = CONTRADICTIONS[name]
    with pytest.raises(ValueError) as refused:
        build(**flags)
    assert all(text in str(refused.value) for text in named), refused.value
    assert "\n" not in str(refused.value)


def test_a_width_that_fits_every_fast_weight_site_is_fine():
    model = build(fwp_d_dot=24, fwp_decoder_feature_map="softmax", fwp_update_rule="delta")
    maps = {m.site: m.feature_map.d_dot for m in model.modules() if isinstance(m, SiteAttention)}
    assert maps == {"encoder": 24, "cross": 24}


def test_sites_override_the_common_choice():
    model = build(
        fwp_feature_map="elu", fwp_update_rule="delta", fwp_decoder_feature_map="dpfp", fwp_decoder_d_dot=36,
        fwp_cross_update_rule="sum", fwp_encoder_normalizer="both",
    )  # fmt: skip
    found = {m.site: m for m in model.modules() if isinstance(m, SiteAttention)}
    described = {site: m.options.describe(m.head_dim) for site, m in found.items()}
    assert described == {
        "encoder": "feature-map=elu d-dot=6 update-rule=delta normalizer=both",
        "decoder": "feature-map=dpfp d-dot=36 update-rule=delta normalizer=sum",
        "cross": "feature-map=elu d-dot=6 update-rule=sum normalizer=attention",
    }
    assert found["encoder"].memory.beta_proj is not None and found["cross"].memory.beta_proj is None


OTHERS = {
    "map": {"fwp_feature_map": "elu"},
    "width": {"fwp_d_dot": 24},
    "normalizer": {"fwp_normalizer": "both"},
    "one-site": {"fwp_cross_feature_map": "elu"},
    "softmax-at-one-site": {"fwp_decoder_feature_map": "softmax"},
    "rule": {"fwp_update_rule": "delta"},
    "other-rule": {"fwp_update_rule": "gated_delta"},
    "softmax": {"fwp_feature_map": "softmax"},
}
FAVOR = {"fwp_feature_map": "favor", "fwp_d_dot": 16}
OF_FAVOR = {
    "random-features": {"fwp_d_dot": 32},
    "fixed-directions": {"fwp_d_dot": 32, "fwp_directions": "fixed"},
    "random-features-and-rule": {"fwp_d_dot": 32, "fwp_update_rule": "delta"},
    "other-random-features": {"fwp_d_dot": 32, "fwp_feature_map": "rfa"},
}


@pytest.mark.parametrize("name", [*OTHERS, *OF_FAVOR])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_checkpoint_of_other_flags_is_refused(name, backwards):
    flags = ({}, OTHERS[name]) if name in OTHERS else (FAVOR, FAVOR | OF_FAVOR[name])
    models = [build(seed, **flags[seed]) for seed in (0, 1)]
    source, target = reversed(models) if backwards else models
    before = {key: tensor.clone() for key, tensor in target.state_dict().items()}
    with pytest.raises(ValueError) as refused:
        target.load_state_dict(source.state_dict())
    was, now = (bytes(model.attention_flags.tolist()).decode() for model in (source, target))
    assert was != now and f"[{was}]" in str(refused.value) and f"[{now}]" in str(refused.value)
    assert all(torch.equal(before[key], tensor) for key, tensor in target.state_dict().items())


@pytest.mark.parametrize("codes", [[300], [-1], [255, 254], [[97]], [0.5]], ids=str)
def test_flags_that_are_no_text_are_a_damaged_checkpoint(codes):
    model = build()
    state = model.state_dict() | {BUFFER: torch.tensor(codes)}
    with pytest.raises(ValueError, match=r"^the checkpoint is damaged: its entry attention_flags is not text$"):
        model.load_state_dict(state)


def test_flags_survive_half_precision_and_saving(tmp_path):
    model = build()
    text = bytes(model.attention_flags.tolist()).decode()
    model.half()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert bytes(state[BUFFER].tolist()).decode() == text
    for site in ("encoder", "decoder", "cross"):
        assert f"{site}: feature-map=dpfp d-dot=12 update-rule=sum normalizer=attention" in text

"""Contradictory flags, and checkpoints trained with other flags, are refused with an error that names both."""

from dataclasses import fields

import pytest
import torch

from fwp_fairseq.config import FastWeightConfig, options_of_site
from fwp_fairseq.kinds import KINDS, Attention
from fwp_fairseq.models.attention_flags import BUFFER
from fwp_fairseq.models.fwp_language_model import FwpLanguageModelConfig
from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.options import OPTIONS, SITES, SiteOptions
from tests.models.helpers import build

CONTRADICTIONS = {
    "delta-everywhere-softmax": (
        {"fwp_feature_map": "softmax", "fwp_update_rule": "delta"},
        ("--fwp-update-rule delta contradicts --fwp-feature-map softmax",),
    ),
    "delta-at-a-softmax-site": (
        {"fwp_cross": "softmax,update-rule=delta"},
        ("--fwp-cross softmax,update-rule=delta: update-rule=delta contradicts feature-map=softmax",),
    ),
    "softmax-of-another-kind": (
        {"fwp_encoder": "delta,feature-map=softmax"},
        ("--fwp-encoder delta,feature-map=softmax: update-rule=delta contradicts feature-map=softmax",),
    ),
    "delta-at-a-site-that-is-softmax-as-all": (
        {"fwp_feature_map": "softmax", "fwp_cross": "update-rule=delta"},
        ("--fwp-cross update-rule=delta contradicts --fwp-feature-map softmax",),
    ),
    "option-for-all-that-no-site-takes": (
        {"fwp_update_rule": "gated", "fwp_encoder": "delta", "fwp_decoder": "elu", "fwp_cross": "softmax"},
        ("--fwp-update-rule gated has no effect", "--fwp-encoder delta,update-rule=gated", "--fwp-decoder elu"),
    ),
    "map-for-all-that-no-site-takes": (
        {"fwp_feature_map": "elu", "fwp_encoder": "softmax", "fwp_decoder": "softmax", "fwp_cross": "softmax"},
        ("--fwp-feature-map elu has no effect",),
    ),
    "impossible-width": (
        {"fwp_feature_map": "dpfp", "fwp_d_dot": 25},
        ("--fwp-d-dot 25", "--fwp-feature-map dpfp", "nearest possible: 24 and 36"),
    ),
    "impossible-width-of-a-kind": (
        {"fwp_cross": "delta,d-dot=24"},
        ("--fwp-cross delta,d-dot=24: d-dot=24 does not fit feature-map=elu at the cross site", "nearest possible: 6"),
    ),
    "width-for-all-does-not-fit-one-site": (
        {"fwp_feature_map": "dpfp", "fwp_d_dot": 24, "fwp_cross": "feature-map=elu"},
        ("--fwp-d-dot 24 does not fit --fwp-cross feature-map=elu at the cross site",),
    ),
    "an-absent-cross-attention": (
        {"no_cross_attention": True, "fwp_cross": "elu"},
        ("--fwp-cross elu", "--no-cross-attention", "no cross attention"),
    ),
    "norm-where-it-is-idle": (
        {"fwp_qk_norm": "l2", "fwp_feature_map": "favor", "fwp_cross": "feature-map=dpfp"},
        ("--fwp-qk-norm l2 contradicts --fwp-cross feature-map=dpfp at the cross site", "expected qk-norm none"),
    ),
    "range-of-beta-without-a-correction": (
        {"fwp_cross": "gated,beta-range=0-2"},
        ("--fwp-cross gated,beta-range=0-2: beta-range=0-2 contradicts update-rule=gated", "expected beta-range 0-1"),
    ),
    "window-of-the-encoder": (
        {"fwp_encoder": "hedgehog-window"},
        ("--fwp-encoder hedgehog-window: window=8 at the encoder site: this is an option of decoder self-attention",),
    ),
    "directions-of-a-map-without-any": (
        {"fwp_feature_map": "favor", "fwp_directions": "fixed", "fwp_cross": "feature-map=elu"},
        ("--fwp-directions fixed contradicts --fwp-cross feature-map=elu", "expected directions redrawn"),
    ),
    "passes-of-a-sum": (
        {"fwp_encoder": "passes=both-ways"},
        ("--fwp-encoder passes=both-ways contradicts --fwp-update-rule sum", "a sum has no order"),
    ),
    "both-ways-with-an-odd-number-of-heads": (
        {"fwp_encoder": "delta,passes=both-ways", "encoder_attention_heads": 3},
        ("--fwp-encoder passes=both-ways contradicts --encoder-attention-heads 3", "expected an even number"),
    ),
    "window-of-the-source-of-fast-weights": (
        {"fwp_cross": "source-window=8", "fwp_feature_map": "elu"},
        ("--fwp-cross source-window=8 contradicts --fwp-feature-map elu", "keep no positions"),
    ),
    "window-of-the-source-of-no-positions": (
        {"fwp_cross": "softmax,source-window=0"},
        ("--fwp-cross softmax,source-window=0: source-window=0: expected a whole number, 1 or more",),
    ),
    "positions-of-fast-weights": (
        {"fwp_positions": "rotary", "fwp_encoder": "softmax"},
        ("--fwp-positions rotary contradicts --fwp-feature-map dpfp at the decoder site", "expected positions none"),
    ),
    "heads-that-do-not-divide-the-width": (
        {"decoder_attention_heads": 5},
        ("--decoder-attention-heads 5: expected a divisor of the model's width",),
    ),
    "no-such-backend": ({"fwp_backend": "referenc"}, ("--fwp-backend referenc: expected one of auto, native",)),
    "width-that-is-no-number": ({"fwp_d_dot": "x"}, ("--fwp-d-dot x: expected a whole number",)),
    "negative-width": ({"fwp_decoder": "d-dot=-96"}, ("d-dot=-96: expected a whole number, 1 or more",)),
    "no-heads": ({"encoder_attention_heads": 0}, ("--encoder-attention-heads 0: expected a divisor",)),
    "cross-self-attention": (
        {"cross_self_attention": True, "no_cross_attention": True},
        ("--cross-self-attention", "--fwp-decoder softmax"),
    ),
    "no-such-kind": (
        {"fwp_encoder": "detla,window=8"},
        ("--fwp-encoder detla,window=8: unknown kind 'detla' (did you mean delta?), expected one of softmax, ",),
    ),
    "no-such-option": (
        {"fwp_encoder": "delta,pases=both-ways"},
        ("unknown option 'pases' (did you mean passes?), expected one of feature-map, d-dot",),
    ),
    "option-for-all-alone": ({"fwp_decoder": "delta,backend=native"}, ("unknown option 'backend'",)),
    "option-twice": ({"fwp_decoder": "elu,window=8,window=9"}, ("window is given twice, expected once",)),
    "option-without-a-value": ({"fwp_decoder": "elu,window"}, ("'window' has no value, expected OPTION=VALUE",)),
    "value-of-another-type": ({"fwp_decoder": "elu,window=few"}, ("window=few: expected a whole number",)),
    "no-such-value": ({"fwp_decoder": "elu,update-rule=hebb"}, ("update-rule=hebb: expected one of sum, delta",)),
    "nothing": ({"fwp_decoder": ""}, ("--fwp-decoder : unknown kind ''",)),
}


def test_there_is_one_flag_for_each_site_and_one_for_each_option_of_several():
    flags = {option.name for option in fields(FastWeightConfig) if option.name.startswith("fwp_")}
    common = {f"fwp_{name}" for name, option in OPTIONS.items() if len(option.sites) > 1}
    assert flags == common | {f"fwp_{site}" for site in SITES}
    language_models = {option.name for option in fields(FwpLanguageModelConfig) if option.name.startswith("fwp_")}
    assert language_models == common | {"fwp_decoder"}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(name):
    flags, named = CONTRADICTIONS[name]
    with pytest.raises(ValueError) as refused:
        build(**flags)
    assert all(text in str(refused.value) for text in named), refused.value
    assert "\n" not in str(refused.value)


def test_a_width_that_fits_every_fast_weight_site_is_fine():
    model = build(fwp_d_dot=24, fwp_decoder="softmax", fwp_update_rule="delta")
    maps = {m.site: m.feature_map.d_dot for m in model.modules() if isinstance(m, FastWeightSiteAttention)}
    assert maps == {"encoder": 24, "cross": 24}


def test_sites_override_the_common_choice():
    model = build(
        fwp_feature_map="elu", fwp_update_rule="delta", fwp_decoder="dpfp,d-dot=36,update-rule=delta",
        fwp_cross="update-rule=sum", fwp_encoder="normalizer=both",
    )  # fmt: skip
    found = {m.site: m for m in model.modules() if isinstance(m, FastWeightSiteAttention)}
    described = {site: m.options.describe(m.head_dim) for site, m in found.items()}
    assert described == {
        "encoder": "feature-map=elu d-dot=6 update-rule=delta normalizer=both",
        "decoder": "feature-map=dpfp d-dot=36 update-rule=delta normalizer=sum",
        "cross": "feature-map=elu d-dot=6 update-rule=sum normalizer=attention",
    }
    assert found["encoder"].memory.beta_proj is not None and found["cross"].memory.beta_proj is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_has_the_options_of_its_kind_whatever_the_flags_for_all_are(kind):
    site = next(site for site in reversed(SITES) if all(site in OPTIONS[name].sites for name in KINDS[kind].options))
    cfg = FastWeightConfig(fwp_feature_map="favor", fwp_qk_norm="l2", fwp_backend="chunked", **{f"fwp_{site}": kind})
    assert options_of_site(cfg, site, 64) == SiteOptions(**KINDS[kind].options, backend="chunked")


@pytest.mark.parametrize(
    "text, nearest",
    [
        *((kind, kind) for kind in KINDS),
        ("delta,update_rule=gated_delta", "gated-delta"),
        ("elu,update-rule=delta,normalizer=l2,output-norm=rms,passes=both-ways", "delta,passes=both-ways"),
        ("elu,update-rule=delta", "elu,update-rule=delta"),
        ("gated-delta,update-rule=delta,normalizer=sum", "delta,normalizer=sum"),
        ("dpfp,normalizer=attention", "dpfp"),
        ("softmax,source-window=8", "softmax,source-window=8"),
    ],
)
def test_options_have_the_name_of_the_nearest_kind(text, nearest):
    options = Attention.parse(text).options()
    assert str(Attention.of(options)) == nearest
    assert Attention.of(options).options().describe(64) == options.describe(64)


OTHERS = {
    "map": {"fwp_feature_map": "elu"},
    "width": {"fwp_d_dot": 24},
    "normalizer": {"fwp_normalizer": "both"},
    "one-site": {"fwp_cross": "elu"},
    "softmax-at-one-site": {"fwp_decoder": "softmax"},
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


def test_a_model_from_the_meta_device_takes_a_checkpoint_of_its_flags():
    saved, model = build().state_dict(), build()
    torch.nn.init.constant_(model.get_buffer(BUFFER), -1)  # as after to_empty
    model.load_state_dict(saved)
    assert torch.equal(model.get_buffer(BUFFER), saved[BUFFER])


def test_flags_survive_half_precision_and_saving(tmp_path):
    model = build()
    text = bytes(model.attention_flags.tolist()).decode()
    model.half()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert bytes(state[BUFFER].tolist()).decode() == text
    for site in ("encoder", "decoder", "cross"):
        assert f"{site}: feature-map=dpfp d-dot=12 update-rule=sum normalizer=attention" in text

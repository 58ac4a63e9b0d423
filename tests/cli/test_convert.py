"""Tests fwp convert, which changes the attention of a checkpoint: what it keeps, what it adds, and what it refuses."""

import json
import re
import shlex

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from omegaconf import OmegaConf

from fwp_fairseq.cli.plugin import import_plugin
from fwp_fairseq.options import SITES
from tests.cli.conftest import LENGTHS, SIZES

import_plugin()

UNTIED = {"share_all_embeddings": False}
WIDE = {f"fwp_{site}": "dpfp,d-dot=32,update-rule=delta" for site in SITES}
DELTA_BIG = "delta_transformer_wmt_en_de_big"
ELU_DELTA = ("--fwp-feature-map", "elu", "--fwp-update-rule", "delta")


@pytest.fixture
def convert(fwp, tmp_path):
    """Converts a checkpoint; returns the new state and the output of the command."""

    def run(path, *flags, output="output.pt"):
        before = path.read_bytes()
        result = fwp("convert", "--input", path, "--output", tmp_path / output, *flags)
        assert result.status == 0, result.err
        assert path.read_bytes() == before
        return torch.load(tmp_path / output, weights_only=True), result.out

    return run


def built(path):
    """Loads the model as fairseq-generate does."""
    (model,), *_ = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    return model


def attention_keys(state, pattern):
    return {name for name in state["model"] if re.search(pattern, name)}


@pytest.mark.parametrize(
    "arch, expected",
    [
        ("transformer", "fwp_transformer"),
        ("transformer_wmt_en_de", "fwp_transformer_wmt_en_de"),
        ("transformer_iwslt_de_en", "fwp_transformer_iwslt_de_en"),
        ("transformer_wmt_en_de_big_t2t", "fwp_transformer"),
    ],
)
def test_stock_transformer(save, convert, arch, expected, tmp_path):
    path = save(arch, activation_fn="gelu")
    state, printed = convert(path, "--fwp-feature-map", "dpfp", "--fwp-d-dot", 32, "--fwp-decoder", "update-rule=delta")
    model = built(tmp_path / "output.pt")
    original = torch.load(path, weights_only=True)["model"]
    for name, tensor in original.items():
        assert torch.equal(model.state_dict()[name], tensor), name
    new = set(model.state_dict()) - set(original)
    assert new == {"attention_flags", "decoder.layers.0.self_attn.memory.beta_proj.weight"}
    cfg = state["cfg"]["model"]
    assert cfg["_name"] == expected and cfg["activation_fn"] == "gelu" and cfg["fwp_d_dot"] == 32
    assert {name: cfg[name] for name in SIZES} == SIZES
    assert f"model: {arch} -> {expected}" in printed
    assert [line for line in printed.splitlines() if line.startswith("--")] == [
        "--fwp-feature-map: softmax -> dpfp",
        "--fwp-d-dot: not set -> 32",
        "--fwp-decoder: not set -> update-rule=delta",
    ]
    assert "new: decoder.layers.*.self_attn.memory.beta_proj.weight (1)" in printed
    assert "dropped: the optimizer's state" in printed and state["optimizer_history"][-1]["num_updates"] == 7
    assert "last_optimizer_state" not in state and "ema" not in state["extra_state"]
    assert model.decoder.layers[0].self_attn.options.update_rule == "delta"
    assert model.encoder.layers[1].self_attn.options.update_rule == "sum"


def test_projections_that_old_versions_of_fairseq_saved_as_one(save, convert, tmp_path):
    path = save("transformer")
    state = torch.load(path, weights_only=True)
    expected, parameters = dict(state["model"]), state["model"]
    for kind in ("weight", "bias"):
        for prefix in [name.removesuffix(f"q_proj.{kind}") for name in expected if name.endswith(f"q_proj.{kind}")]:
            parts = [parameters.pop(f"{prefix}{part}_proj.{kind}") for part in "qkv"]
            parameters[f"{prefix}in_proj_{kind}"] = torch.cat(parts)
    torch.save(state, path)
    convert(path, "--fwp-feature-map", "elu")
    model = built(tmp_path / "output.pt")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("arch", ["transformer_lm", "fwp_lm"])
def test_language_models(save, convert, refused, arch, tmp_path):
    path = save(arch, **({"fwp_feature_map": "elu"} if arch == "fwp_lm" else {}))
    state, _ = convert(path, "--fwp-feature-map", "favor", "--fwp-d-dot", 8, "--fwp-update-rule", "gated")
    model = built(tmp_path / "output.pt")
    assert model.decoder.layers[1].self_attn.feature_map.m == 4
    assert len(attention_keys(state, "beta_proj")) == 4 and state["cfg"]["model"]["_name"] == "fwp_lm"
    message = refused(
        *(1, "convert", "--input", path, "--output", tmp_path / "x.pt"),
        *("--fwp-feature-map", "elu", "--fwp-cross", "dpfp"),
    )
    assert "--fwp-cross: this model has no such site" in message


def test_a_window_of_the_source_is_a_change(save, convert, refused, tmp_path):
    path = save("fwp_transformer_tiny", fwp_cross="softmax")
    state, printed = convert(path, "--fwp-cross", "source-window=5")
    assert state["cfg"]["model"]["fwp_cross"] == "softmax,source-window=5"
    assert "--fwp-cross: softmax -> softmax,source-window=5" in printed
    again = ("convert", "--input", tmp_path / "output.pt", "--output", tmp_path / "again.pt")
    assert "has this attention already" in refused(1, *again, "--fwp-cross", "source-window=5")


def test_positions_and_convolutions_are_added_kept_and_dropped(save, convert, tmp_path):
    flags = "--fwp-feature-map", "softmax", "--fwp-positions", "rotary"
    path = save("transformer")
    original = torch.load(path, weights_only=True)["model"]
    state, _ = convert(path, *flags, "--fwp-decoder", "conv-size=3")
    new = set(state["model"]) - set(original) - {"attention_flags"}
    convs = {name for name in new if "_conv.weight" in name}
    lengths = {name for name in new if name.endswith("encoder_attn.positions.lengths")}
    assert new == convs | lengths and len(lengths) == 1 and len(convs) == 3
    assert all(torch.equal(state["model"][name], original[name]) for name in original)
    assert all(state["model"][name][:, 0].tolist() == [[0, 0, 1]] * 16 for name in convs)

    state["model"] |= {name: torch.tensor([5, 6]) for name in lengths}
    state["model"] |= {name: torch.randn(16, 1, 3) for name in convs}
    trained = tmp_path / "trained.pt"
    torch.save(state, trained)
    kept, _ = convert(trained, "--fwp-encoder", "positions=none", output="kept.pt")
    assert all(torch.equal(kept["model"][name], state["model"][name]) for name in new)
    wider, _ = convert(trained, "--fwp-decoder", "conv-size=2", output="wider.pt")
    assert all(wider["model"][name][:, 0].tolist() == [[0, 1]] * 16 for name in convs)
    assert all(wider["model"][name].tolist() == [5, 6] for name in lengths)
    dropped, _ = convert(trained, "--fwp-feature-map", "elu", "--fwp-positions", "none", output="dropped.pt")
    assert not {name for name in dropped["model"] if "positions" in name}
    for name in ("output", "kept", "wider", "dropped"):
        built(tmp_path / f"{name}.pt")


def test_write_strengths_are_added_as_the_module_draws_them_and_dropped(save, convert, tmp_path):
    path = save("fwp_transformer_tiny", fwp_feature_map="dpfp")
    delta, printed = convert(path, "--fwp-update-rule", "delta", output="delta.pt")
    strengths = [delta["model"][name] for name in sorted(attention_keys(delta, "beta_proj"))]
    assert [tuple(tensor.shape) for tensor in strengths] == [(2, 16)] * 4
    values = torch.cat(strengths)
    assert 0.01 < values.std() < 0.04 and abs(values.mean()) < 0.01 and len(values.unique()) == values.numel()
    assert "--fwp-update-rule: sum -> delta" in printed
    again, _ = convert(path, "--fwp-update-rule", "delta")
    other, _ = convert(path, "--fwp-update-rule", "delta", "--seed", 2)
    name = "encoder.layers.1.self_attn.memory.beta_proj.weight"
    assert torch.equal(again["model"][name], delta["model"][name])
    assert not torch.equal(other["model"][name], delta["model"][name])

    back, printed = convert(tmp_path / "delta.pt", "--fwp-update-rule", "sum")
    original = torch.load(path, weights_only=True)["model"]
    assert back["model"].keys() == original.keys()
    assert all(torch.equal(back["model"][name], tensor) for name, tensor in original.items())
    assert "dropped: encoder.layers.*.self_attn.memory.beta_proj.weight (2)" in printed


def test_trained_write_strengths_are_kept(save, convert):
    path = save("fwp_transformer_tiny", fwp_update_rule="delta")
    original = torch.load(path, weights_only=True)["model"]
    names = attention_keys({"model": original}, "beta_proj")
    decaying = ("--fwp-update-rule", "gated_delta", "--fwp-decoder", "beta-range=0-2")
    for flags in (("--fwp-feature-map", "elu"), ("--fwp-update-rule", "gated"), decaying):
        state, printed = convert(path, *flags)
        for name in names:
            assert torch.equal(state["model"][name], original[name])
    assert len(attention_keys(state, "decay")) == 3 * len(names)
    assert "update-rule=gated_delta normalizer=l2 beta-range=0-2" in printed
    assert "new: decoder.layers.*.encoder_attn.memory.decay.log_rate (1)" in printed
    assert not any(state["model"][name].any() for name in attention_keys(state, r"beta_proj\.bias"))


def test_norms_are_added_kept_and_dropped(save, convert, tmp_path):
    path = save("fwp_transformer_tiny", fwp_feature_map="favor", fwp_d_dot=8)
    state, printed = convert(path, "--fwp-encoder", "qk-norm=l2", output="l2.pt")
    scales = attention_keys(state, "qk_norm")
    assert scales == {f"encoder.layers.{layer}.self_attn.qk_norm.scale" for layer in (0, 1)}
    assert "--fwp-encoder: not set -> qk-norm=l2" in printed and "qk_norm.scale (2)" in printed
    for name in scales:
        assert torch.equal(state["model"][name], torch.ones(2))
        state["model"][name] += 1
    built(tmp_path / "l2.pt")
    torch.save(state, tmp_path / "l2.pt")
    elu, _ = convert(tmp_path / "l2.pt", "--reset", "--fwp-feature-map", "elu", "--fwp-encoder", "qk-norm=l2")
    assert all(torch.equal(elu["model"][name], torch.full((2,), 2.0)) for name in scales)
    back, printed = convert(tmp_path / "l2.pt", "--fwp-encoder", "qk-norm=none")
    assert not attention_keys(back, "qk_norm") and "dropped: encoder.layers.*.self_attn.qk_norm.scale (2)" in printed


def test_learned_maps_are_kept_where_map_and_width_stay(save, convert, tmp_path):
    path = save("fwp_transformer_tiny", fwp_feature_map="hedgehog", fwp_d_dot=16)
    original = torch.load(path, weights_only=True)["model"]
    for name in (maps := attention_keys({"model": original}, "_map")):
        original[name] += 1
    torch.save(torch.load(path, weights_only=True) | {"model": original}, path)
    assert len(maps) == 8 and any("query_map" in name for name in maps)
    delta, _ = convert(path, "--fwp-update-rule", "delta")
    assert all(torch.equal(delta["model"][name], original[name]) for name in maps)
    # One W for queries and keys, of the same shape as Hedgehog's, and b.
    t2r, printed = convert(path, "--fwp-feature-map", "t2r", "--fwp-d-dot", 8, output="t2r.pt")
    assert len(attention_keys(t2r, "_map")) == 8
    assert "dropped: decoder.layers.*.self_attn.memory.features.query_map.weight" in printed
    name = "encoder.layers.0.self_attn.memory.features.feature_map.weight"
    assert t2r["model"][name].shape == original[name].shape and not torch.equal(t2r["model"][name], original[name])
    built(tmp_path / "t2r.pt")


def test_fast_nets_are_kept_where_they_stay_and_new_where_they_change(save, convert, tmp_path):
    path = save("fwp_transformer_tiny", fwp_decoder="delta-rnn,feature-map=hedgehog,recurrent=tanh")
    original = torch.load(path, weights_only=True)["model"]
    names = attention_keys({"model": original}, r"memory\.(slow|feedback)|_map")
    of_memory = ("slow", "feedback", "features.feature_map", "features.query_map")
    assert {name.rpartition("self_attn.")[2] for name in names} == {f"memory.{name}.weight" for name in of_memory}
    stays, _ = convert(path, "--fwp-encoder", "elu")
    assert all(torch.equal(stays["model"][name], original[name]) for name in names)
    # Its slow net has the same shape and another meaning.
    other, printed = convert(path, "--fwp-decoder", "fast-net=delta", output="delta.pt")
    assert "hedgehog,recurrent=tanh -> " in printed
    for name in names:
        assert other["model"][name].shape == original[name].shape
        assert torch.equal(other["model"][name], original[name]) == ("_map" in name)
    built(tmp_path / "delta.pt")
    fed, _ = convert(path, "--fwp-decoder", "recurrent=softmax")  # of which every name and shape stays
    for name in names:
        assert torch.equal(fed["model"][name], original[name]) == ("_map" in name)
    without, _ = convert(path, "--fwp-decoder", "fast-net=linear,recurrent=none")
    assert not attention_keys(without, r"memory\.(slow|feedback)")


def test_random_features_are_drawn_dropped_and_kept_with_their_seed(save, convert, tmp_path):
    path = save("fwp_transformer_tiny", fwp_feature_map="favor", fwp_d_dot=8)
    original = torch.load(path, weights_only=True)["model"]
    features = attention_keys({"model": original}, "feature_map")
    assert len(features) == 8
    delta, _ = convert(path, "--fwp-update-rule", "delta")
    assert all(torch.equal(delta["model"][name], original[name]) for name in features)
    wide, _ = convert(path, "--fwp-d-dot", 12, output="wide.pt")
    assert attention_keys(wide, "feature_map") == features
    for name in features:
        assert wide["model"][name].shape == ((6, 8) if name.endswith("projection") else ())
    seeds = [name for name in features if name.endswith("seed")]
    assert not any(torch.equal(wide["model"][name], original[name]) for name in seeds)
    module = built(tmp_path / "wide.pt").encoder.layers[0].self_attn.memory.features.feature_map
    assert torch.equal(module._draw(0), module.projection)
    dropped, _ = convert(path, "--reset", "--fwp-feature-map", "elu")
    assert not attention_keys(dropped, "feature_map")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch, options, flags, expected",
    [
        ("transformer_iwslt_de_en", {"dropout": 0.0}, ELU_DELTA, "fwp_transformer_iwslt_de_en"),
        ("transformer_lm", {"decoder_normalize_before": True}, ELU_DELTA, "fwp_lm"),
        # Values of a preset that no flag can undo: shared embeddings, and a width.
        ("transformer_tiny", {"share_all_embeddings": False}, ELU_DELTA, "fwp_transformer"),
        ("transformer_tiny", {}, ELU_DELTA, "fwp_transformer_tiny"),
        (DELTA_BIG, WIDE, ("--reset", "--fwp-feature-map", "softmax"), DELTA_BIG),
        (DELTA_BIG, WIDE, ("--reset", "--fwp-feature-map", "dpfp"), "fwp_transformer"),
        (DELTA_BIG, WIDE, ("--reset", "--fwp-feature-map", "favor"), DELTA_BIG),
        (DELTA_BIG, WIDE, ("--fwp-encoder", "elu,d-dot=8"), DELTA_BIG),
        # A default that follows another flag: the width of the decoder is that of the encoder.
        ("transformer", {"decoder_embed_dim": 512, **UNTIED}, ELU_DELTA, "fwp_transformer"),
        ("transformer", {"adaptive_softmax_cutoff": [8, 16], **UNTIED}, ELU_DELTA, "fwp_transformer"),
        ("transformer", {"encoder_layers_to_keep": "0,1"}, ELU_DELTA, "fwp_transformer"),
        ("transformer", {"merge_src_tgt_embed": True, **UNTIED}, ELU_DELTA, "fwp_transformer"),
        ("transformer_lm", {"character_embeddings": True, "character_filters": "[(1, 8)]"}, ELU_DELTA, "fwp_lm"),
        ("transformer_lm", {"character_embeddings": True, "adaptive_softmax_cutoff": "8,16"}, ELU_DELTA, "fwp_lm"),
    ],
)
def test_flags_to_train_on_give_the_same_model(save, convert, tmp_path, arch, options, flags, expected):
    """fairseq's own parser reads the printed flags, and every option of the model gets its value."""
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    state, printed = convert(save(arch, **options), *flags)
    words = shlex.split(printed.splitlines()[-1])
    assert words[:4] == ["--finetune-from-model", str(tmp_path / "output.pt"), "--arch", expected]
    task = ["--task", state["cfg"]["task"]["_name"]]
    lengths = {
        name: state["cfg"]["task"][name] for name in (*LENGTHS, "tokens_per_sample") if name in state["cfg"]["task"]
    }
    task += [word for name, value in lengths.items() for word in ("--" + name.replace("_", "-"), str(value))]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), ["data", *task, *words[2:]])
    found = OmegaConf.to_container(convert_namespace_to_omegaconf(args).model)
    assert found == state["cfg"]["model"] | {"_name": expected}
    assert state["cfg"]["model"]["_name"] == expected
    assert all(str(found[name]) == str(value) for name, value in options.items() if not name.startswith("fwp_"))
    model = tasks.setup_task(OmegaConf.create(state["cfg"]["task"])).build_model(OmegaConf.create(found))
    model.load_state_dict(state["model"], strict=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state["model"][name]), name


@pytest.mark.parametrize(
    "options, flags, named",
    [
        ({}, ("--fwp-d-dot", 30), ["--fwp-d-dot 30", "nearest possible: 16 and 32", "--reset"]),
        ({"fwp_d_dot": 32}, ("--fwp-feature-map", "elu"), ["--fwp-d-dot 32", "elu", "nearest possible: 8", "--reset"]),
        ({"fwp_d_dot": 32}, ("--fwp-feature-map", "softmax"), ["--fwp-d-dot 32", "softmax"]),
        ({}, ("--fwp-encoder", "softmax,d-dot=16"), ["--fwp-encoder softmax,d-dot=16"]),
        ({}, ("--fwp-update-rule", "sum"), ["already"]),
        ({}, (), ["already", "dpfp"]),
        (
            {"fwp_decoder": "softmax", "cross_self_attention": True, "no_cross_attention": True},
            ("--fwp-decoder", "dpfp"),
            ["--cross-self-attention", "--fwp-decoder softmax"],
        ),
    ],
)
def test_what_cannot_be_is_refused(save, refused, tmp_path, options, flags, named):
    path = save("fwp_transformer_tiny", **options)
    message = refused(1, "convert", "--input", path, "--output", tmp_path / "out.pt", *flags)
    assert all(text in message for text in named), message
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_torch_cannot_use_are_refused(save, refused, tmp_path, seed):
    words = "--input", save("fwp_transformer_tiny"), "--output", tmp_path / "out.pt", "--seed", seed
    assert f"--seed {seed}: expected a whole number from 0" in refused(2, "convert", *words)


HYBRID = {
    "fwp_feature_map": "softmax",
    "fwp_encoder": "elu,update-rule=delta,passes=both-ways",
    "fwp_decoder": "elu",
}


@pytest.mark.parametrize("chosen", ["dpfp", "softmax"])
def test_a_common_map_replaces_the_whole_attention(save, convert, tmp_path, chosen):
    state, printed = convert(save("fwp_transformer_tiny", **HYBRID), "--fwp-feature-map", chosen)
    options = state["cfg"]["model"]
    assert options["fwp_feature_map"] == chosen
    assert {options[f"fwp_{site}"] for site in SITES} == {None}
    assert re.search(r"attention: \[decoder: .*feature-map=elu.*\] -> ", printed)
    assert not attention_keys(state, "beta_proj")
    assert ("softmax]" if chosen == "softmax" else "decoder: ") in printed.partition("] -> [")[2]
    built(tmp_path / "output.pt")


def test_a_common_option_replaces_that_of_every_site(save, convert):
    state, _ = convert(save("fwp_transformer_tiny", **HYBRID), "--fwp-update-rule", "gated")
    options = state["cfg"]["model"]
    assert options["fwp_encoder"] == "elu,update-rule=gated,passes=both-ways"
    assert options["fwp_decoder"] == "elu,update-rule=gated"
    assert len(attention_keys(state, "beta_proj.weight")) == 3


def test_flags_for_programs(save, convert, tmp_path):
    path = save("fwp_transformer_tiny")
    _, printed = convert(path, "--fwp-feature-map", "elu", "--flags-json", tmp_path / "flags.json")
    found = json.loads((tmp_path / "flags.json").read_text())
    assert printed.splitlines()[-1].split(" ", 4)[4] == shlex.join(found["flags"])
    assert f"-> [{found['attention']}]" in printed and "feature-map=elu" in found["attention"]

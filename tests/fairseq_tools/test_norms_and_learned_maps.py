"""Learned maps and decay, norms, finished features, fast nets: trained and decoded with by fairseq's commands."""

import math
import re

import pytest
import yaml

from tests.fairseq_tools.test_generation import assert_same_translations

# Every mechanism is at one site at least.
BY_FLAGS = {
    "encoder": "hedgehog",
    "decoder": "t2r,d-dot=20,qk-norm=l2,update-rule=gated_delta,beta-range=0-2",
    "cross": "hedgehog,d-dot=6",
}
BY_YAML = {
    "feature_map": "dpfp",
    "update_rule": "delta",
    "normalizer": "l2",
    "output_norm": "rms",
    "decoder": "fast-net=lstm",
    "encoder": "rfa,update-rule=gated,normalizer=l2,output-norm=rms,passes=both-ways",
    "cross": "favor,directions=fixed,qk-norm=l2,update-rule=sum,normalizer=sum,output-norm=rms",
}
UPDATES = 30


def _train_by_flags(tools):
    words = [word for name, value in BY_FLAGS.items() for word in (f"--fwp-{name.replace('_', '-')}", value)]
    return tools.train("by-flags", *words, "--max-update", UPDATES, "--no-epoch-checkpoints")


def _train_by_yaml(tools):
    """The usual training of these tests, as a file for fairseq-hydra-train."""
    sizes = {"encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    attention = {f"fwp_{name}": value for name, value in BY_YAML.items()}
    config = {
        "common": {"user_dir": tools.user_dir[1], "cpu": True, "seed": 1, "log_interval": 1, "log_format": "json"},
        "task": {"_name": "translation", "data": str(tools.folder / "bin"), "source_lang": "en", "target_lang": "de"},
        "model": {"_name": "fwp_transformer_tiny", **sizes, **heads, **attention},
        "criterion": {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam", "adam_betas": "(0.9,0.98)"},
        "lr_scheduler": {"_name": "inverse_sqrt", "warmup_updates": 10},
        "dataset": {"batch_size": 40, "num_workers": 0},
        "optimization": {"lr": [0.01], "clip_norm": 1.0, "max_update": UPDATES},
        "checkpoint": {"save_dir": str(tools.folder / "by-yaml"), "no_epoch_checkpoints": True},
        "hydra": {"run": {"dir": str(tools.folder / "hydra")}, "job": {"chdir": False}},
    }
    (tools.folder / "norms.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return tools.run("hydra_train", "--config-dir", tools.folder, "--config-name", "norms")


@pytest.mark.parametrize("train", [_train_by_flags, _train_by_yaml], ids=["flags", "yaml"])
def test_trained_and_decoded_with(tools, train):
    chosen, folder = {_train_by_flags: (BY_FLAGS, "by-flags"), _train_by_yaml: (BY_YAML, "by-yaml")}[train]
    found = train(tools).ok()
    path = f"{folder}/checkpoint_last.pt"
    state = tools.load(path)
    assert {name: state["cfg"]["model"][f"fwp_{name}"] for name in chosen} == chosen
    log = found.out + found.err
    losses = [float(loss) for loss in re.findall(r'[{ ]"loss": "([^"]+)"', log)]
    assert len(losses) == UPDATES and all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-5:]) < 0.92 * sum(losses[:5])
    # What is learned, is learned: none of the new parameters is as a new model has it.
    new = {name: x for name, x in state["model"].items() if re.search(r"_map\.|qk_norm|output_norm|slow|decay", name)}
    new = {name: x for name, x in new.items() if not name.endswith(("seed", "projection"))}
    assert {name.split(".")[-1] for name in new} == (
        {"weight", "bias", "scale", "log_rate"} if chosen is BY_FLAGS else {"weight", "scale", "sigma"}
    )
    assert all(len(x.unique()) > 1 for x in new.values())

    # Step by step as by the definition, and as teacher-forced.
    usual = (path, "--beam", 3, "--max-len-b", 8)
    lazy = tools.generate(*usual).ok()
    defined = tools.generate(*usual, "--model-overrides", "{'fwp_backend': 'reference'}").ok()
    assert len(lazy.translations()) == 40
    assert_same_translations(lazy, defined)

"""Checkpoints with the flags of single sites that 0.3.0 took away open, and have the attention that they had.

options_of_7e205be.json has what commit 7e205be made of command lines with them: the options of each model, and the
description of its attention that its checkpoints contain.
"""

import json
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fwp_fairseq.checkpoint_content import upgrade
from fwp_fairseq.checkpoint_model import build
from fwp_fairseq.cli.plugin import import_plugin
from fwp_fairseq.kinds import KINDS
from fwp_fairseq.upgrades import upgraded

import_plugin()
OLD = json.loads(Path(__file__).with_name("options_of_7e205be.json").read_text())
# What the upgraded options say of the sites, where that is not all there is to say.
SITES = {
    "hybrid": ("delta,passes=both-ways", "delta", "softmax"),
    "hybrid, with decay": ("gated-delta,passes=both-ways", "gated-delta", "softmax"),
    "softmax": (None, None, None),
    "softmax, window of the source": (None, None, "softmax,source-window=3"),
    "window": (None, "hedgehog-window,d-dot=16", None),
}
PARAMETERS = {"decoder.embed_tokens.weight": torch.zeros(20, 16)}


@pytest.mark.parametrize("name", OLD)
def test_the_attention_is_what_it_was(name):
    before = dict(OLD[name]["model"])
    options = upgraded(before)
    assert before == OLD[name]["model"]  # which is not changed
    assert not [flag for flag in options if flag.startswith(("fwp_encoder_", "fwp_decoder_", "fwp_cross_"))]
    assert upgraded(options) is options
    model = build(options, PARAMETERS, "cpu")
    assert bytes(model.attention_flags.tolist()).decode() == OLD[name]["attention"]
    if name in SITES:
        assert tuple(options[f"fwp_{site}"] for site in ("encoder", "decoder", "cross")) == SITES[name]


def test_options_that_no_site_takes_are_forgotten():
    options = upgraded(OLD["hybrid"]["model"] | {"fwp_feature_map": "favor", "fwp_update_rule": "delta"})
    assert (options["fwp_feature_map"], options["fwp_update_rule"]) == ("dpfp", "sum")


def test_no_upgrade_without_old_options():
    state = {"cfg": {"model": {"_name": "fwp_transformer", "fwp_encoder": "delta"}}, "model": {}}
    cfg = state["cfg"]
    upgrade(state)
    assert state["cfg"] is cfg


def test_fairseq_reads_them_and_refuses_old_names_in_overrides(tmp_path):
    old = OLD["hybrid"]["model"]
    model = build(upgraded(old), PARAMETERS, "cpu")
    state = {
        "cfg": {"_name": None, "model": old, "task": {"_name": "translation"}, "common": {}},
        "args": None, "model": model.state_dict(), "optimizer_history": [{"num_updates": 1, "best_loss": None}],
        "extra_state": {}, "task_state": {},
    }  # fmt: skip
    torch.save(state, tmp_path / "old.pt")
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "old.pt"), {"fwp_cross": "softmax,source_window=3"})
    assert loaded["cfg"]["model"]["fwp_encoder"] == "delta,passes=both-ways"
    assert loaded["cfg"]["model"]["fwp_cross"] == "softmax,source_window=3"
    with pytest.raises(
        RuntimeError, match=r"fwp_cross_source_window: this option was removed; expected .* fwp_cross: 'soft"
    ):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "old.pt"), {"fwp_cross_source_window": 3})


def test_kinds_in_use_keep_their_meaning():
    """Checkpoints name kinds, whose options therefore never change."""
    delta = {"feature_map": "elu", "update_rule": "delta", "normalizer": "l2", "output_norm": "rms"}
    assert KINDS["delta"].options == delta
    assert KINDS["gated-delta"].options == delta | {"update_rule": "gated_delta"}
    assert KINDS["hedgehog-window"].options == {"feature_map": "hedgehog", "window": 8}

"""Checkpoints of pruned models say how many layers they hold."""

import argparse

import pytest
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

import fwp_fairseq.mends  # noqa: F401

OPTIONS = {"_name": "fwp_transformer", "arch": "transformer", "encoder_layers": 3, "encoder_layers_to_keep": "0,2"}
OPTIONS |= {"decoder_layers": 2, "decoder_layers_to_keep": None}


@pytest.mark.parametrize("make", [OmegaConf.create, lambda options: argparse.Namespace(**options)])
def test_the_options_have_the_number_of_layers(make):
    whole = {f"encoder.layers.{n}.fc1.weight": n for n in range(3)}
    whole |= {f"decoder.layers.{n}.fc1.weight": n for n in range(2)}
    cfg = make(OPTIONS)
    pruned = checkpoint_utils.prune_state_dict(whole, cfg)
    assert [pruned[f"encoder.layers.{n}.fc1.weight"] for n in range(2)] == [0, 2] and len(pruned) == 2 + 2
    assert (cfg.encoder_layers, cfg.encoder_layers_to_keep, cfg.decoder_layers) == (2, None, 2)
    assert checkpoint_utils.prune_state_dict(pruned, make(OPTIONS)) == pruned, "a training that is resumed"

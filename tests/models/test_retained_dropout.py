"""Tests --retain-dropout-modules: which dropouts stay active in decoding."""

import pytest
import torch
from fairseq.modules.fairseq_dropout import FairseqDropout

from tests.models.helpers import build, loss
from tests.models.test_language_model import tiny as build_language_model

ENCODER, DECODER = {"encoder.dropout_module"}, {"decoder.dropout_module"}


def retained(model, modules) -> set[str]:
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=modules)
    return {
        name
        for name, module in model.named_modules()
        if isinstance(module, FairseqDropout) and module.apply_during_inference
    }


def of_layers(side: str, *modules: str) -> set[str]:
    return {f"{side}.layers.{layer}.{module}" for layer in (0, 1) for module in modules}


LAYER = ("dropout_module", "activation_dropout_module")


@pytest.mark.parametrize(
    "modules, expected",
    [
        ("TransformerEncoder", ENCODER),
        ("FwpEncoder", ENCODER),
        ("TransformerEncoder,TransformerDecoder", ENCODER | DECODER),
        ("['TransformerEncoder', 'FwpDecoder']", ENCODER | DECODER),
        (["TransformerEncoder", "TransformerEncoderLayer"], ENCODER | of_layers("encoder", *LAYER)),
        ("TransformerDecoderLayerBase", of_layers("decoder", *LAYER)),
        ("SiteAttention", of_layers("decoder", "self_attn.dropout_module", "encoder_attn.dropout_module")),
        (
            "MultiheadAttention",
            of_layers("encoder", "self_attn.dropout_module")
            | of_layers("decoder", "self_attn.dropout_module", "encoder_attn.dropout_module"),
        ),
    ],
    ids=lambda value: None if isinstance(value, set) else str(value),
)
def test_by_fairseqs_names_and_ours(modules, expected):
    assert retained(build(fwp_encoder_feature_map="softmax"), modules) == expected


def test_of_a_language_model():
    assert retained(build_language_model(), "TransformerDecoder") == DECODER


def test_decoding_differs_from_pass_to_pass():
    model = build(dropout=0.5)
    retained(model, "TransformerEncoder")
    assert not torch.equal(loss(model), loss(model))


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"--retain-dropout-modules LSTMEncoder: .* FwpDecoder, .*TransformerEncoder"):
        retained(build(), "LSTMEncoder")

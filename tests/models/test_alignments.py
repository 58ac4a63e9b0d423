"""Weights with gradients for guided alignment, and alignments that are asked for after decoding is prepared."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment

from fwp_fairseq.memories.matrix import Matrix
from tests.models.helpers import WORDS, build, prefixes, sources

CROSS = {
    "dpfp": {},
    "delta": {"fwp_update_rule": "delta", "fwp_feature_map": "elu"},
    "hedgehog": {"fwp_feature_map": "hedgehog"},
    "identity": {"fwp_feature_map": "identity"},
    "rfa": {"fwp_cross": "rfa,update-rule=gated_delta"},
    "softmax": {"fwp_cross": "softmax"},
}


@pytest.mark.parametrize("flags", CROSS)
def test_guided_alignment_has_weights_with_gradients_in_training(flags):
    model = build(**CROSS[flags]).train()
    src, lengths = sources([6, 4])
    for layer in model.decoder.layers:
        layer.encoder_attn.shows_weights_in_training = True  # as build_model does with --load-alignments
    _, extra = model(src, lengths, prefixes(2, 5))
    (weights,) = extra["attn"]
    assert weights.shape == (2, 5, 6) and (weights > 0).sum() >= 5 * (6 + 4)
    assert weights.sum(-1).max() < 1.001
    weights[0].log().mean().backward()  # the sentence without pads
    gradient = model.decoder.layers[-1].encoder_attn.q_proj.weight.grad
    assert gradient.isfinite().all() and gradient.abs().max() > 0


@torch.no_grad()
def test_only_the_layer_that_shows_weights_computes_them(monkeypatch):
    model, asked = build(decoder_layers=3), []
    compute = Matrix.weights
    monkeypatch.setattr(Matrix, "weights", lambda memory, *given: asked.append(memory) or compute(memory, *given))
    src, lengths = sources([6, 4])
    model(src, lengths, prefixes(2, 5))
    assert asked == [model.decoder.layers[-1].encoder_attn.memory]


@pytest.mark.parametrize("asked", [False, True], ids=["afterwards", "before"])
@pytest.mark.parametrize("flags", CROSS)
def test_alignments_on_demand(flags, asked):
    """The hub prepares a model before anybody asks for an alignment."""
    model = build(**CROSS[flags])
    model.make_generation_fast_(need_attn=asked)
    model.eval()
    src, lengths = sources([6, 4])
    sample = {"net_input": {"src_tokens": src, "src_lengths": lengths}, "target": None}
    generator = SequenceGeneratorWithAlignment([model], WORDS, beam_size=2, max_len_b=7, print_alignment="soft")
    with torch.no_grad():
        found = generator.generate([model], sample)
    alignments = [hypothesis["alignment"] for row in found for hypothesis in row]
    assert len(alignments) == 4 and all(len(alignment) for alignment in alignments)


def test_the_task_says_whether_training_reads_alignments():
    from fwp_fairseq.models.fwp_transformer import FwpTransformer
    from tests.models.helpers import arguments

    for wanted in (False, True):
        task = SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS)
        task.cfg = SimpleNamespace(load_alignments=wanted)
        model = FwpTransformer.build_model(arguments("fwp_transformer_tiny"), task)
        assert {layer.encoder_attn.shows_weights_in_training for layer in model.decoder.layers} == {wanted}

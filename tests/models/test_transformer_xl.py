"""Transformer-XL against its equations position by position, in segments and step by step."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm, relu

from fwp_fairseq.models.transformer_xl import TransformerXlConfig, TransformerXlLanguageModel
from fwp_fairseq.modules.carried_state import CarriedState, Segment
from fwp_fairseq.modules.relative_attention import RelativeAttention
from tests.models.helpers import PAD, prefixes, tokens
from tests.models.test_carried_state import gradients, in_segments
from tests.models.test_language_model import SIZES, build
from tests.tolerances import assert_close

LENGTH, LAYERS, HEADS, WIDTH = 23, 2, 2, 12


def make(arch="transformer_xl_lm", **flags):
    return build(arch, cls=TransformerXlLanguageModel, config=TransformerXlConfig, **flags)


def tiny(**flags):
    sizes = SIZES | {"decoder_input_dim": WIDTH, "decoder_output_dim": WIDTH}
    model = make(**(sizes | {"mem_len": 64, "dropout": 0.0} | flags)).double().eval()
    with torch.no_grad():  # as far from zero as after a training, and different in all heads
        for vector in (model.decoder.layers[0].self_attn.u, model.decoder.layers[0].self_attn.v):
            vector.normal_()
    return model


def norm(module: nn.LayerNorm, x):
    return layer_norm(x, (WIDTH,), module.weight, module.bias, module.eps)


def naive(model, text, segment: int, mem_len: int, pre_norm: bool):
    """The logits of one text, for one position and head after the other: Dai et al. 2019, Sec. 3.3.

    A layer at position i reads its inputs at the positions from ``mem_len`` before the segment on. No gradient flows to
    those before the segment.
    """
    decoder, d = model.decoder, WIDTH // HEADS
    x = [math.sqrt(WIDTH) * decoder.embed_tokens.weight[token] for token in text]
    for layer in decoder.layers:
        a, behind = layer.self_attn, []
        W = {name: getattr(a, f"{name}_proj").weight.view(HEADS, d, WIDTH) for name in "qkvr"}
        for i in range(len(x)):
            start = i - i % segment
            heads = []
            for h in range(HEADS):
                inputs, scores = {}, {}
                for j in range(max(0, start - mem_len), i + 1):
                    y = x[j].detach() if j < start else x[j]
                    inputs[j] = norm(layer.self_attn_layer_norm, y) if pre_norm else y
                q = W["q"][h] @ inputs[i]
                for j, y in inputs.items():
                    angles = [(i - j) / 10000 ** (2 * n / WIDTH) for n in range(WIDTH // 2)]
                    r = torch.tensor([f(angle) for f in (math.sin, math.cos) for angle in angles], dtype=torch.double)
                    score = (q + a.u[h]) @ (W["k"][h] @ y) + (q + a.v[h]) @ (W["r"][h] @ r)
                    scores[j] = torch.exp(score / math.sqrt(d))
                heads.append(sum(scores[j] * (W["v"][h] @ y) for j, y in inputs.items()) / sum(scores.values()))
            y = x[i] + a.out_proj.weight @ torch.cat(heads)
            y = y if pre_norm else norm(layer.self_attn_layer_norm, y)
            z = norm(layer.final_layer_norm, y) if pre_norm else y
            z = y + layer.fc2.weight @ relu(layer.fc1.weight @ z + layer.fc1.bias) + layer.fc2.bias
            behind.append(z if pre_norm else norm(layer.final_layer_norm, z))
        x = behind
    if pre_norm:
        x = [norm(decoder.layer_norm, y) for y in x]
    return torch.stack([decoder.output_projection.weight @ y for y in x])


@pytest.mark.parametrize(
    "segment, mem_len, flags",
    [
        (11, 0, {}),
        (3, 5, {}),
        (3, 2, {"checkpoint_activations": True}),
        (1, 4, {}),
        (4, 4, {"decoder_normalize_before": True}),
    ],
)
def test_the_equations_position_by_position(segment, mem_len, flags):
    """Values and gradients, which are cut at the memory."""
    model, text = tiny(mem_len=mem_len, **flags).train(), prefixes(1, 11)
    found, _ = in_segments(model, text, range(segment, 11, segment))
    expected = naive(model, text[0], segment, mem_len, flags.get("decoder_normalize_before", False))
    assert_close(found[0], expected, "model")
    mine, theirs = ([], [])
    for logits, gradients_of in ((found[0], mine), (expected, theirs)):
        model.zero_grad()
        (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
        gradients_of += [parameter.grad for parameter in model.parameters()]
    for gradient, right in zip(mine, theirs, strict=True):
        assert_close(gradient, right, "model")


def test_segments_equal_one_piece():
    """With a memory as long as the text; the gradients are cut."""
    model, text = tiny(mem_len=LENGTH).train(), prefixes(3, LENGTH)
    expected = model(text)[0]
    cut = in_segments(model, text, (7, 8, 15))[0]
    assert_close(cut, expected, "model")
    whole = gradients(model, expected)
    assert any(not torch.allclose(gradient, whole[name]) for name, gradient in gradients(model, cut).items())


@torch.no_grad()
def test_step_by_step_is_segments_of_one_token():
    model = tiny(mem_len=6)
    text, state, carried = prefixes(4, 1), {}, CarriedState()
    offsets = torch.zeros(4, dtype=torch.long)
    for step in range(15):
        now, _ = model.decoder(text, incremental_state=state)
        expected, _ = model(text[:, -1:], segment=Segment(carried), offsets=offsets + step)
        assert_close(now, expected, "model")
        text = torch.cat([text, tokens(len(text), 1, seed=step)], 1)
    assert all(x.shape[1] == 6 for x in state[next(iter(state))].values())


@torch.no_grad()
def test_streams_that_begin_or_end():
    """A row that begins anew remembers nothing, one that has ended leaves no trace, others go on."""
    model, text, more = tiny(mem_len=9), prefixes(3, LENGTH), tokens(3, 5, seed=5)
    state = in_segments(model, text, (10,))[1]
    expected, _ = in_segments(model, torch.cat([text, more], 1), (10, LENGTH))
    more[2, 3:] = PAD
    offsets = torch.tensor([LENGTH, 0, LENGTH])
    found, _ = model(more, segment=Segment(CarriedState(state)), offsets=offsets)
    assert found.isfinite().all()
    assert_close(found[0], expected[0, LENGTH:], "model")
    assert_close(found[1], model(more)[0][1], "model")
    assert_close(found[2, :3], expected[2, LENGTH:-2], "model")


@torch.no_grad()
def test_a_memory_of_another_precision():
    """A training goes on in another precision than that of its checkpoint."""
    model, text = tiny(), prefixes(3, LENGTH)
    segment = Segment(CarriedState(in_segments(model, text, ())[1]))
    assert model.float()(text, segment=segment, offsets=torch.full((3,), LENGTH))[0].dtype == torch.float32


def test_refusals():
    with pytest.raises(ValueError, match="--mem-len -1: expected 0 or more"):
        tiny(mem_len=-1)
    with pytest.raises(ValueError, match=r"--decoder-layerdrop 0.5 contradicts Transformer-XL"):
        tiny(decoder_layerdrop=0.5)
    with pytest.raises(ValueError, match="--decoder-learned-pos contradicts Transformer-XL, which has no absolute"):
        tiny(decoder_learned_pos=True)
    for given in (True, False):
        assert tiny(no_token_positional_embeddings=given).decoder.embed_positions is None


def test_dropout_initialisation_and_what_layers_share():
    x, attention = torch.randn(5, 2, WIDTH), RelativeAttention(WIDTH, 2, 4, position_dropout=0.5)
    assert not RelativeAttention(WIDTH, 2, 4, dropout=1.0)(x)[0].any()
    assert not torch.equal(attention(x)[0], attention(x)[0])
    wide = RelativeAttention(64, 2, 4)
    assert abs(wide.k_proj.weight.std() / wide.out_proj.weight.std() - 0.5**0.5) < 0.05
    one, two = (layer.self_attn for layer in tiny(dropout=0.3, attention_dropout=0.2).decoder.layers)
    assert (one.position_dropout_module.p, one.dropout_module.p) == (0.3, 0.2) and one.u is two.u and one.v is two.v

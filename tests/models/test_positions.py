"""Models with rotary positions and short convolutions: checkpoints, lengths, decoding and gradients."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fwp_fairseq.models.attention_flags import BUFFER, text_of
from fwp_fairseq.models.lengths import measure_lengths, measure_lengths_before_training
from fwp_fairseq.modules.rotary import CrossPositions
from tests.models.helpers import WORDS, build, loss, prefixes, sources

SOFTMAX = {"fwp_feature_map": "softmax", "fwp_positions": "rotary"}
HYBRID = {
    "fwp_feature_map": "elu", "fwp_update_rule": "gated_delta", "fwp_encoder": "passes=both-ways",
    "fwp_cross": "softmax-rotary", "fwp_conv_size": 4,
}  # fmt: skip
KINDS = {"softmax": SOFTMAX, "softmax-conv": SOFTMAX | {"fwp_conv_size": 4}, "hybrid": HYBRID}


def _model(kind: str, seed: int = 0):
    """With convolutions that are not the identity, and a measured ratio."""
    model = build(seed, **KINDS[kind])
    for name, parameter in model.named_parameters():
        if "_conv" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    for module in model.modules():
        if isinstance(module, CrossPositions):
            module.lengths.copy_(torch.tensor([3, 4]))
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_search_finds_what_scoring_says(kind, left):
    """Beam search's scores of its translations are those of the whole pass, alone and without pads."""
    model = _model(kind)
    src, lengths = sources([7, 4, 1, 6], left=left)
    generator = SequenceGenerator([model], WORDS, beam_size=3, max_len_b=9)
    sample = {"net_input": {"src_tokens": src, "src_lengths": lengths}}
    prefix = torch.tensor([[5, 6], [7, WORDS.pad()], [8, 9], [5, 5]])
    for options in ({}, {"prefix_tokens": prefix}):
        for row, hypotheses in enumerate(generator.generate([model], sample, **options)):
            alone = src[row][src[row] != WORDS.pad()][None]
            for hypothesis in hypotheses:
                tokens = hypothesis["tokens"]
                previous = torch.cat([tokens.new_tensor([WORDS.eos()]), tokens[:-1]])[None]
                scores = model(alone, torch.tensor([alone.shape[1]]), previous)[0].log_softmax(-1)[0]
                expected = scores.gather(1, tokens[:, None])[:, 0]
                torch.testing.assert_close(hypothesis["positional_scores"].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind):
    model = _model(kind).train()
    loss(model).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        # A bias of the keys adds the same to all scores of a query, unless positions turn it or features bend it.
        assert parameter.grad.any() or name.endswith("k_proj.bias"), name


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_keep_lengths_and_name_the_options(kind):
    model, other = _model(kind), build(1, **KINDS[kind])
    other.load_state_dict(model.half().state_dict())
    lengths = [module.lengths.tolist() for module in other.modules() if isinstance(module, CrossPositions)]
    assert lengths == [[3, 4]] * 2
    text = text_of(model.get_buffer(BUFFER))
    assert "cross: softmax positions=rotary" in text and ("conv-size=4" in text) == ("fwp_conv_size" in KINDS[kind])
    for changed in ({"fwp_cross": "softmax"}, {"fwp_decoder": "conv-size=3"}):
        with pytest.raises(ValueError, match="the checkpoint was trained with other attention flags"):
            build(1, **KINDS[kind] | changed).load_state_dict(model.state_dict())


def test_the_training_set_is_measured_once_before_the_first_update():
    model = build(**SOFTMAX)
    data = SimpleNamespace(sizes=np.array([[7, 9], [3, 4], [5, 5]]))
    begun = []
    task = SimpleNamespace(datasets={"train": data}, begin_epoch=lambda *given: begun.append(given))
    measure_lengths_before_training(model, task)
    task.begin_epoch(1, model)
    found = [module.lengths.tolist() for module in model.modules() if isinstance(module, CrossPositions)]
    assert found == [[15, 18]] * 2 and begun == [(1, model)]
    data.sizes = data.sizes * 2
    task.begin_epoch(2, model)
    assert model.decoder.layers[0].encoder_attn.positions.lengths.tolist() == [15, 18]
    for where in ("cfg", "args"):  # --train-subset, of a task with a dataclass or without
        named = SimpleNamespace(datasets={"part": data}, **{where: SimpleNamespace(train_subset="part")})
        measure_lengths(other := build(**SOFTMAX), named)
        assert other.decoder.layers[1].encoder_attn.positions.lengths.tolist() == [30, 36]
    for name, kind in (("train", "SimpleNamespace"), ("part", "NoneType")):  # the latter as denoising with another name
        unknown = SimpleNamespace(datasets={name: SimpleNamespace(sizes=np.array([1, 2]))})
        with pytest.raises(ValueError, match=f"cross site: the training set, a {kind}, does not"):
            measure_lengths(build(**SOFTMAX), unknown)


def test_xformers_and_cross_self_attention_have_no_positions():
    with pytest.raises(ValueError, match=r"contradicts .* softmax-rotary: expected --fwp-decoder softmax, or drop"):
        build(**SOFTMAX, cross_self_attention=True, no_cross_attention=True)
    with pytest.raises(
        ValueError, match="rotary positions at the encoder site: heads of width 3, expected an even width"
    ):
        build(**SOFTMAX, encoder_attention_heads=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_pads_of_sources_and_targets_change_nothing(kind, left):
    """With --left-pad-target, too."""
    model = _model(kind)
    src, lengths = sources([7, 3], left=left)
    previous = prefixes(2, 6)
    alone = previous[1, 2:].clone()
    alone[0] = WORDS.eos()
    previous[1] = torch.cat(
        [alone.new_full((2,), WORDS.pad()), alone] if left else [alone, alone[:2] * 0 + WORDS.pad()]
    )
    found = model(src, lengths, previous)[0][1, 2:] if left else model(src, lengths, previous)[0][1, :4]
    source = src[1][src[1] != WORDS.pad()][None]
    expected = model(source, lengths[1:], alone[None])[0][0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_activation_checkpoints_have_the_same_gradients(kind):
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = build(0, **KINDS[kind], checkpoint_activations=checkpointed, dropout=0.0).train()
        src, lengths = sources([7, 3], left=True)
        previous = prefixes(2, 6)
        previous[1, :2] = WORDS.pad()
        model(src, lengths, previous)[0][0].square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-9)

"""A text read in segments with carried fast weights is the text read in one piece."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fwp_fairseq.modules.carried_state import CarriedState, Segment
from tests.models.helpers import prefixes, tokens
from tests.models.test_language_model import RULES, tiny
from tests.tolerances import assert_close

LENGTH = 23
TARGETS = tokens(3, LENGTH, seed=77)


def in_segments(model, text, cuts):
    """The logits of a text that is read in segments which end at these positions, and the state behind it."""
    state, out, start = CarriedState(), [], 0
    offsets = torch.zeros(len(text), dtype=torch.long)
    for end in (*cuts, text.shape[1]):
        x, _ = model(text[:, start:end], segment=Segment(state), offsets=offsets + start)
        out.append(x)
        start = end
    return torch.cat(out, 1), state.states


def loss(logits):
    return cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), reduction="sum")


@torch.no_grad()
@pytest.mark.parametrize(
    "flags",
    [
        *({"fwp_feature_map": "elu", "fwp_update_rule": rule, "fwp_normalizer": "both"} for rule in RULES),
        {"fwp_feature_map": "hedgehog", "fwp_d_dot": 10, "fwp_qk_norm": "l2"},
        {"fwp_feature_map": "t2r", "fwp_d_dot": 7, "fwp_update_rule": "gated"},
        {"fwp_update_rule": "delta", "fwp_normalizer": "l2", "fwp_output_norm": "rms"},
        {"fwp_decoder": "delta-rnn,feature-map=dpfp"},
        {"fwp_decoder": "delta-mlp,feature-map=dpfp,fast-net-depth=2,recurrent=tanh"},
        {"fwp_update_rule": "gated_delta", "fwp_output_norm": "rms", "fwp_beta_range": "0-2"},
        {"fwp_decoder": "hedgehog-window,window=5"},
        {"fwp_feature_map": "favor", "fwp_directions": "fixed"},
        {"fwp_feature_map": "elu", "fwp_update_rule": "delta", "fwp_conv_size": 4},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_segments_equal_one_piece(flags):
    model, text = tiny(**flags, no_token_positional_embeddings=True), prefixes(3, LENGTH)
    expected, (found, _) = model(text)[0], in_segments(model, text, (7, 8, 15))
    assert_close(found, expected, "model")
    assert abs(loss(found) - loss(expected)) < 1e-9 * loss(expected)


@torch.no_grad()
def test_without_a_state_each_segment_begins_with_nothing_written():
    """--fwp-state reset."""
    model, text = tiny(fwp_update_rule="delta"), prefixes(3, LENGTH)
    offsets = torch.full((3,), LENGTH)
    assert_close(model(text, segment=Segment(), offsets=offsets)[0], model(text)[0], "model")


@torch.no_grad()
def test_layer_drop_keeps_the_state_of_each_layer():
    """A layer that an update leaves out keeps what was carried to it."""
    flags = {"fwp_update_rule": "delta", "decoder_layers": 4, "decoder_layerdrop": 0.5, "dropout": 0.0}
    model, text = tiny(**flags), prefixes(3, 8)
    before, left_out = in_segments(model, text, ())[1], 0
    for _ in range(5):
        state = CarriedState(before)
        model.train()(text, segment=Segment(state), offsets=torch.full((3,), 8))
        after = state.states
        assert after.keys() == before.keys() == set(range(4))
        left_out += sum(torch.equal(after[n][0], before[n][0]) for n in before)
    assert 0 < left_out < 20
    dropped = tiny(dropout=1.0).train()(text, segment=Segment(), offsets=torch.zeros(3, dtype=torch.long))[0]
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))


@torch.no_grad()
def test_without_positions_and_with_positions_that_restart():
    text = prefixes(3, LENGTH)
    assert tiny(no_token_positional_embeddings=True, fwp_feature_map="softmax").max_positions() == 64
    model = tiny(fwp_update_rule="delta", no_token_positional_embeddings=True)
    assert_close(in_segments(model, text, (4, 8, 9))[0], model(text)[0], "model")
    model = tiny(fwp_update_rule="delta")
    restarted, _ = in_segments(model, text, (9,))
    assert_close(restarted[:, :9], model(text)[0][:, :9], "model")
    assert not torch.allclose(restarted[:, 9:], model(text)[0][:, 9:])


@torch.no_grad()
def test_a_stream_that_begins_resets_its_row_only():
    model = tiny(fwp_update_rule="delta", fwp_normalizer="both")
    text = prefixes(3, LENGTH)
    state, whole = in_segments(model, text, ())[1], in_segments(model, text, ())[1]
    carried = CarriedState(state)
    more = tokens(3, 5, seed=5)
    out, _ = model(more, segment=Segment(carried), offsets=torch.tensor([LENGTH, 0, LENGTH]))
    fresh, _ = model(more)
    assert_close(out[1], fresh[1], "model")
    assert not torch.allclose(out[0], fresh[0])
    # Nobody wrote into what was handed down.
    assert all(torch.equal(a, b) for n in state for a, b in zip(state[n], whole[n], strict=True))


@torch.no_grad()
@pytest.mark.parametrize("feature_map", ["dpfp", "softmax"])
def test_rows_that_end_leave_no_trace(feature_map):
    """A row is padded where its stream ends, to nothing but pads in the end."""
    model = tiny(fwp_feature_map=feature_map)
    text = prefixes(3, LENGTH)
    ragged = text.clone()
    ragged[1, 10:], ragged[2, 4:] = model.decoder.padding_idx, model.decoder.padding_idx
    found, _ = in_segments(model, ragged, (8, 16))
    expected, _ = in_segments(model, text, (8, 16))
    assert found.isfinite().all()
    for row, end in enumerate((LENGTH, 10, 4)):
        assert_close(found[row, :end], expected[row, :end], "model")


def gradients(model, logits):
    model.zero_grad()
    loss(logits).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


ATTENTIONS = {rule: {"fwp_update_rule": rule, "fwp_normalizer": "both"} for rule in RULES}
ATTENTIONS["lstm"] = {"fwp_decoder": "delta-lstm,feature-map=dpfp,recurrent=tanh"}


@pytest.mark.parametrize("checkpoint_activations", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_gradient_is_cut_between_segments(attention, checkpoint_activations):
    flags = ATTENTIONS[attention] | dict(no_token_positional_embeddings=True, dropout=0.0)
    model = tiny(checkpoint_activations=checkpoint_activations, **flags).train()
    text = prefixes(3, LENGTH)
    expected = gradients(model, model(text)[0])
    for name, gradient in gradients(model, in_segments(model, text, ())[0]).items():
        assert_close(gradient, expected[name], "model")
    cut = gradients(model, in_segments(model, text, (6, 12, 18))[0])
    assert any(not torch.allclose(cut[name], expected[name]) for name in cut)


def test_a_segment_read_twice_begins_where_it_began():
    """fairseq repeats a batch after an overflow (--amp) or a full memory."""
    model = tiny(fwp_update_rule="delta", fwp_normalizer="both")
    text, offsets = prefixes(3, LENGTH), torch.zeros(3, dtype=torch.long)
    state = CarriedState(in_segments(model, text, ())[1])
    segment = Segment(state)
    first = model(text, segment=segment, offsets=offsets + LENGTH)[0]
    behind = state.states
    assert torch.equal(model(text, segment=segment, offsets=offsets + LENGTH)[0], first)
    again = state.states
    assert all(torch.equal(a, b) for n in behind for a, b in zip(behind[n], again[n], strict=True))
    assert not any(x.requires_grad for tensors in again.values() for x in tensors if x is not None)


@torch.no_grad()
def test_softmax_sites_are_fairseqs():
    """Each segment is a batch of the stock model; beside them fast weights are carried."""
    model = tiny(fwp_feature_map="softmax")
    text = prefixes(3, LENGTH)
    found, state = in_segments(model, text, (8, 16))
    expected = torch.cat([model(text[:, start:end])[0] for start, end in ((0, 8), (8, 16), (16, LENGTH))], 1)
    assert torch.equal(found, expected) and state == {}


def test_what_cannot_be_carried_is_refused():
    text, offsets = prefixes(3, 8), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match="--fwp-state carried contradicts feature map favor"):
        tiny(fwp_feature_map="favor")(text, segment=Segment(CarriedState()), offsets=offsets)  # evaluation may
        tiny(fwp_feature_map="favor").train()(text, segment=Segment(CarriedState()), offsets=offsets)
    fixed = tiny(fwp_feature_map="favor", fwp_directions="fixed").train()
    assert fixed(text, segment=Segment(CarriedState()), offsets=offsets)[0].isfinite().all()
    learned = tiny(decoder_learned_pos=True)
    with pytest.raises(ValueError, match="--tokens-per-sample 80: this model has 64 learned positions"):
        learned(prefixes(3, 80), segment=Segment(), offsets=offsets)

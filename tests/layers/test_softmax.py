"""The baseline layer: the results of torch's attention, and states and steps like those of the other layers."""

import io

import pytest
import torch

from fwp_fairseq.layers import FastWeightAttention, FastWeightDecoder, SoftmaxAttention
from tests.tolerances import assert_close

EMBED, HEADS = 12, 2


def build(**options):
    return SoftmaxAttention(EMBED, HEADS, **options).double().eval()


def random(length=9, width=EMBED):
    return torch.randn(3, length, width, dtype=torch.float64)


def pads(length=9):
    mask = torch.zeros(3, length, dtype=torch.bool)
    mask[1, -2:] = mask[2, :3] = True
    return mask


def torchs(layer):
    """torch.nn.MultiheadAttention with the same weights."""
    width = layer.k_proj.in_features
    theirs = torch.nn.MultiheadAttention(EMBED, HEADS, batch_first=True, kdim=width, vdim=width).double().eval()
    with torch.no_grad():
        parts = [layer.q_proj, layer.k_proj, layer.v_proj]
        if width == EMBED:
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        else:
            for name, part in zip("qkv", parts, strict=True):
                getattr(theirs, f"{name}_proj_weight").copy_(part.weight)
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(layer.out_proj.state_dict())
    return theirs


@torch.no_grad()
def test_results_are_those_of_torch():
    x, source = random(), random(7, 10)
    causal, encoder, cross = build(), build(causal=False), build(causal=False, source_dim=10)
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    right = torch.zeros(3, 9, dtype=torch.bool)
    right[1, -2:] = True
    expected, _ = torchs(causal)(x, x, x, attn_mask=future, key_padding_mask=right)
    assert_close(causal(x, key_padding_mask=right)[0], expected, "model")
    expected, _ = torchs(encoder)(x, x, x, key_padding_mask=pads())
    assert_close(encoder(x, key_padding_mask=pads())[0], expected, "model")
    expected, _ = torchs(cross)(x, source, source, key_padding_mask=pads(7))
    out, state = cross(x, source, key_padding_mask=pads(7))
    assert_close(out, expected, "model")
    assert_close(cross.read(x[:, :2], state), expected[:, :2], "model")


@torch.no_grad()
def test_pieces_and_steps_are_the_whole_and_states_are_like_the_others():
    layer, x, mask = build(), random(), pads()
    whole, _ = layer(x, key_padding_mask=mask)
    assert_close(whole[2, 0], layer.out_proj.bias, "rounding")  # nothing but pads before it
    first, state = layer(x[:, :4], key_padding_mask=mask[:, :4])
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    rest, _ = layer(x[:, 4:], state=torch.load(file, weights_only=True), key_padding_mask=mask[:, 4:])
    assert_close(torch.cat([first, rest], 1), whole, "model")
    rows = torch.tensor([2, 0])
    out, longer = layer.step(x[rows, 4], state.select(rows))
    assert_close(out, whole[rows, 4], "model")
    assert longer.k.shape == (2, HEADS, 5, EMBED // HEADS) and state.k.shape[2] == 4


def test_it_begins_with_the_projections_of_fast_weights():
    torch.manual_seed(1)
    softmax = SoftmaxAttention(EMBED, HEADS)
    torch.manual_seed(1)
    linear = FastWeightAttention("elu", EMBED, HEADS)
    ours, theirs = softmax.state_dict(), linear.state_dict()
    assert ours.keys() <= theirs.keys() and all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_a_decoder_of_it_learns_and_writes():
    model = FastWeightDecoder("softmax", 7, embed_dim=EMBED, num_heads=HEADS, num_layers=2)
    tokens = torch.randint(7, (3, 6))
    logits, _ = model(tokens)
    logits.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    state = None
    for t in range(6):
        found, state = model.step(tokens[:, t], state)
    assert_close(found, logits[:, -1], "float32")


@pytest.mark.parametrize("causal", [True, False])
def test_what_stands_at_pads_reaches_nothing(causal):
    layer, x = build(causal=causal), random().masked_fill(pads()[..., None], torch.nan).requires_grad_()
    out, _ = layer(x, key_padding_mask=pads())
    assert torch.equal(out[~pads()], layer(x.nan_to_num(), key_padding_mask=pads())[0][~pads()])
    gradients = torch.autograd.grad(out[~pads()].sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("causal", [True, False])
def test_states_of_a_wrong_kind(causal):
    layer, x = build(causal=causal), random()
    state = layer(x)[1]
    wrong = [
        FastWeightAttention("elu", EMBED, HEADS)(x.float())[1],
        state.select(torch.tensor([0])),
        tuple(state[:2]),
        3,
    ]
    wrong += [state._replace(k=x), state._replace(v=state.v[:, :, 1:]), state._replace(k=state.k[..., 1:])]
    wrong += [state._replace(pads=state.pads.double()), state._replace(k=state.k.bool())]
    wrong += [type(state)(*(y.to("meta") for y in state))]
    calls = [lambda other: layer(x, state=other)]
    calls.append((lambda other: layer.step(x[:, 0], other)) if causal else (lambda other: layer.read(x, other)))
    for other in wrong:
        for call in calls:
            with pytest.raises(ValueError, match=r"^state.*, expected"):
                call(other)
    for call in calls:
        for found, wanted in zip(call(tuple(state)), call(state), strict=True):
            assert torch.equal(found, wanted) if isinstance(found, torch.Tensor) else len(found) == len(wanted)


def test_what_makes_no_sense_is_named():
    with pytest.raises(ValueError, match="embed_dim = 12 is not divisible by num_heads = 5"):
        SoftmaxAttention(12, 5)
    with pytest.raises(ValueError, match="source_dim = 10 contradicts causal = True"):
        SoftmaxAttention(12, 2, source_dim=10)
    with pytest.raises(ValueError, match="source is given to causal attention"):
        build()(random(), random())
    with pytest.raises(ValueError, match="read needs causal=False"):
        build().read(random(), None)
    with pytest.raises(ValueError, match="step is for attention with causal=True"):
        build(causal=False).step(random()[:, 0])


def test_a_state_in_float32_continues_in_half_precision():
    layer, x = SoftmaxAttention(EMBED, HEADS).half(), random().half()
    _, state = layer(x)
    wide = state._replace(k=state.k.float(), v=state.v.float())
    expected, _ = layer(x, state=state)
    out, _ = layer(x, state=wide)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, expected)

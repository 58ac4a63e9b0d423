"""The layers without fairseq: the results of fairseq's module with the same weights, states, steps, refusals."""

import pytest
import torch

from fwp_fairseq.kinds import KINDS
from fwp_fairseq.layers import FastWeightAttention, FastWeightDecoder, SoftmaxAttention
from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.options import SiteOptions
from tests.tolerances import assert_close

EMBED, HEADS, BATCH, LENGTH = 12, 2, 3, 9
OPTIONS = {
    "dpfp-sum": {"d_dot": 24},
    "elu-delta": {
        "feature_map": "elu", "update_rule": "delta", "qk_norm": "l2", "output_norm": "rms", "beta_range": "0-2"
    },
    "favor-gated": {"feature_map": "favor", "d_dot": 16, "update_rule": "gated", "normalizer": "both"},
    "hedgehog-delta": {"feature_map": "hedgehog", "d_dot": 8, "update_rule": "delta", "normalizer": "l2"},
    "rfa-gated": {"feature_map": "rfa", "d_dot": 32, "update_rule": "gated"},
    "elu-gated_delta": {
        "feature_map": "elu", "update_rule": "gated_delta", "output_norm": "rms", "beta_range": "0-2"
    },
}  # fmt: skip
SITES = {"decoder": True, "encoder": False, "cross": False}


def build(case: str, causal=True, **options) -> FastWeightAttention:
    return FastWeightAttention("dpfp", EMBED, HEADS, causal=causal, **OPTIONS[case], **options).double().eval()


def random(length=LENGTH, width=EMBED):
    return torch.randn(BATCH, length, width, dtype=torch.float64)


def pads(length=LENGTH):
    mask = torch.zeros(BATCH, length, dtype=torch.bool)
    mask[1, -2:] = mask[2, :3] = True
    return mask


@pytest.mark.parametrize("case", OPTIONS)
@torch.no_grad()
def test_the_same_weights_give_what_fairseqs_module_gives(case):
    for site, causal in SITES.items():
        width = 10 if site == "cross" else EMBED
        theirs = FastWeightSiteAttention(
            EMBED, HEADS, site=site, options=SiteOptions(**OPTIONS[case]), source_dim=width
        )
        theirs.double().eval()
        layer = build(case, causal, source_dim=width)
        layer.load_state_dict(theirs.state_dict())
        x, source = random(), random(7, width)
        for mask in (None, pads(7) if site == "cross" else pads()):
            key = (source if site == "cross" else x).transpose(0, 1)
            expected, _ = theirs(x.transpose(0, 1), key, key, key_padding_mask=mask, static_kv=site == "cross")
            out, _ = layer(x, source if site == "cross" else None, key_padding_mask=mask)
            assert_close(out, expected.transpose(0, 1), "model")
            alone = layer(x, source if site == "cross" else None, key_padding_mask=mask, return_state=False)
            assert alone[1] is None
            assert_close(alone[0], out, "model")


@torch.no_grad()
def test_both_ways_give_what_fairseqs_encoder_gives():
    options = OPTIONS["elu-delta"] | {"passes": "both-ways"}
    theirs = FastWeightSiteAttention(EMBED, HEADS, site="encoder", options=SiteOptions(**options)).double().eval()
    layer = FastWeightAttention("dpfp", EMBED, HEADS, causal=False, **options).double().eval()
    layer.load_state_dict(theirs.state_dict())
    x = random()
    expected, _ = theirs(*[x.transpose(0, 1)] * 3, key_padding_mask=pads())
    out, state = layer(x, key_padding_mask=pads())
    assert_close(out, expected.transpose(0, 1), "model")
    assert state is None
    written = build("elu-delta", causal=False)(x)[1]
    for call in (lambda: layer(x, x), lambda: layer(x, state=written)):
        with pytest.raises(ValueError, match="both-ways', which takes neither a source nor a state"):
            call()
    with pytest.raises(ValueError, match="both-ways"):
        layer.read(x, written)
    with pytest.raises(ValueError, match="passes = 'both-ways': this is an option of encoder self-attention"):
        FastWeightAttention("dpfp", EMBED, HEADS, **options)


@pytest.mark.parametrize("case", OPTIONS)
@torch.no_grad()
def test_a_source_is_written_once_or_in_pieces_and_only_read(case):
    layer, x, source, mask = build(case, False, source_dim=10), random(4), random(7, 10), pads(7)
    whole, state = layer(x, source, key_padding_mask=mask)
    assert_close(layer.read(x, state), whole, "model")
    for t in range(4):
        assert_close(layer.read(x[:, [t]], state), whole[:, [t]], "model")
    _, state = layer(x, source[:, :3], key_padding_mask=mask[:, :3])
    assert_close(layer(x, source[:, 3:], key_padding_mask=mask[:, 3:], state=state)[0], whole, "model")


def test_gradients_flow_through_the_state_until_it_is_detached():
    model = FastWeightDecoder("gated", 7, embed_dim=EMBED, num_heads=HEADS, num_layers=2).double()
    tokens = torch.randint(7, (BATCH, LENGTH))
    gradients = []
    for first, cut in ((LENGTH, False), (4, False), (4, True)):
        logits, state = model(tokens[:, :first])
        if cut:
            state = [layer.detach() for layer in state]
        rest, _ = model(tokens[:, first:], state)
        loss = torch.cat([logits, rest], 1).square().sum()
        gradients += torch.autograd.grad(loss, model.layers[0].attention.v_proj.weight)
    assert_close(gradients[1], gradients[0], "model")
    assert (gradients[2] - gradients[0]).abs().max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"update_rule": "delta", "backend": "chunked"}], ids=str)
@torch.no_grad()
def test_the_decoder_step_by_step_and_in_pieces(options):
    model = (
        FastWeightDecoder("gated", 7, embed_dim=EMBED, num_heads=HEADS, num_layers=2, dropout=0.1, **options)
        .double()
        .eval()
    )
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    tokens = torch.randint(7, (BATCH, LENGTH))
    whole, _ = model(tokens)
    assert whole.shape == (BATCH, LENGTH, 7)
    first, state = model(tokens[:, :4])
    assert_close(torch.cat([first, model(tokens[:, 4:], state)[0]], 1), whole, "model")
    sizes, state = set(), None
    for t in range(LENGTH):
        logits, state = model.step(tokens[:, t], state)
        assert_close(logits, whole[:, t], "model")
        sizes.add(sum(x.numel() for layer in state for x in layer if x is not None))
        if t == 4:
            rows = torch.tensor([2, 2, 0])
            tokens, whole, state = tokens[rows], whole[rows], [layer.select(rows) for layer in state]
    assert len(sizes) == 1
    with pytest.raises(ValueError, match="state of 1 layers, expected one of 2"):
        model(tokens, state[:1])
    later = tokens.index_fill(1, torch.arange(5, LENGTH), 0)
    assert torch.equal(model(later)[0][:, :5], model(tokens)[0][:, :5])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"update_rule": "hebb"}, "update_rule = 'hebb', expected one of sum, delta, gated, gated_delta"),
        ({"feature_map": "softmax"}, "feature_map = 'softmax', expected one of elu, dpfp"),
        ({"qk_norm": "l2"}, "qk_norm = 'l2' contradicts feature_map = 'dpfp': .* expected none, or another map"),
        ({"feature_map": "rfa", "update_rule": "delta"}, r"normalizer = 'auto' .* 'rfa': .* negative.*\(sum\)"),
        ({"normalizer": "both", "output_norm": "rms"}, "normalizer = 'both' contradicts output_norm = 'rms'"),
        ({"source_dim": 10}, "source_dim = 10 contradicts causal = True"),
        ({"causal": False, "update_rule": "delta", "passes": "both-ways", "source_dim": 10}, "source_dim .*both-ways"),
        ({"causal": False, "source_dim": 0}, "source_dim = 0, expected at least 1"),
        ({"num_heads": 5}, "embed_dim = 12 is not divisible by num_heads = 5"),
        ({"kind": "delt"}, r"unknown kind 'delt' \(did you mean delta\?\), expected one of softmax, "),
        ({"kind": "softmax"}, "feature_map = 'softmax', expected one of elu, dpfp"),
    ],
    ids=str,
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FastWeightAttention(**{"kind": "dpfp", "embed_dim": EMBED, "num_heads": HEADS} | options)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not SiteOptions(**KINDS[kind].options).is_softmax])
def test_a_kind_by_name_stands_for_its_options_and_others_beat_it(kind):
    options = SiteOptions(**KINDS[kind].options)
    layer = FastWeightAttention(kind, EMBED, HEADS, causal=options.passes == "one")
    assert layer.options == options
    other = FastWeightAttention(
        kind, EMBED, HEADS, causal=options.passes == "one", backend="reference", directions="redrawn"
    )
    assert other.options == SiteOptions(**KINDS[kind].options, backend="reference")


def test_calls_that_do_not_fit_are_refused():
    causal, cross, x = build("dpfp-sum"), build("dpfp-sum", causal=False), random()
    for call, message in (
        (lambda: causal(x, x), "source is given to causal attention, expected None"),
        (lambda: causal.read(x, causal(x)[1]), "read needs causal=False"),
        (lambda: cross.read(x, None), "state is None, expected the state that forward returned"),
        (lambda: SoftmaxAttention(EMBED, HEADS, causal=False).read(x, None), "state is None, expected"),
        (lambda: cross.step(x[:, 0]), "step is for attention with causal=True"),
        (lambda: causal(x[0]), r"x is of shape \(9, 12\), expected 3 dimensions, the last one of 12"),
        (lambda: cross(x, x[..., 1:]), r"source is of shape \(3, 9, 11\), expected 3 dimensions, the last one of 12"),
        (lambda: cross(x, x[:1]), "source is of 1 rows, expected as many as x, 3"),
        (lambda: SoftmaxAttention(EMBED, HEADS, causal=False)(x, x[:1]), "source is of 1 rows, expected as many as x"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("causal", [True, False])
def test_sums_that_a_norm_divides_do_not_overflow_in_half_precision(causal):
    x = torch.randn(2, 1024, 128) + 0.5
    layer = FastWeightAttention("elu", 128, 2, causal=causal, output_norm="rms")
    half = FastWeightAttention("elu", 128, 2, causal=causal, output_norm="rms")
    half.load_state_dict(layer.state_dict())
    half.half()
    outputs = [module(given)[0].float() for module, given in ((layer, x), (half, x.half()))]
    assert_close(outputs[1], outputs[0], "float16")
    names = [f"{name}_proj.weight" for name in "qkv"]
    gradients = []
    for module, out in zip((layer, half), outputs, strict=True):
        parameters = dict(module.named_parameters())
        gradients.append(torch.autograd.grad(128 * out.mean(), [parameters[name] for name in names]))
    for found, wanted in zip(*reversed(gradients), strict=True):
        assert (found - wanted).norm() < 0.03 * wanted.norm()
    if causal:
        _, state = half(x.half())
        assert half.step(x[:, 0].half(), state)[0].isfinite().all()


def test_states_on_another_device_are_refused():
    for kind in ("elu", "hedgehog-window", "fwp1991", "delta-lstm"):
        layer, x = FastWeightAttention(kind, EMBED, HEADS), torch.randn(BATCH, LENGTH, EMBED)
        state = layer(x)[1]
        elsewhere = type(state)(*(None if y is None else y.to("meta") for y in state))
        with pytest.raises(ValueError, match=r"^state\.\w+ is on meta, expected cpu"):
            layer(x, state=elsewhere)


def test_what_layers_start_with_and_what_dropout_drops():
    tokens, model = torch.randint(7, (BATCH, LENGTH)), FastWeightDecoder("gated", 7)
    assert model(tokens)[0].std() < 1 and model.layers[0].ffn[0].out_features == 512
    assert not model.layers[0].attention.memory.beta_proj.bias.any()
    assert not FastWeightDecoder("gated", 7, dropout=1.0)(tokens)[0].any()
    assert not FastWeightAttention("dpfp", EMBED, HEADS, dropout=1.0)(torch.randn(BATCH, LENGTH, EMBED))[0].any()
    layer = FastWeightAttention("delta-rnn", 64, 4, recurrent="tanh")
    slow, feedback = layer.memory.slow.weight.view(4, -1, 64)[:, :16], layer.memory.feedback.weight
    assert abs(slow.std() / layer.k_proj.weight.std() - 1) < 0.1 and abs(4 * feedback.std() - 1) < 0.1

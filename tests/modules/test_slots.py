"""Slots in attention: the function against loops in float64, gradients, decoding, padding, and what is refused."""

import copy
import math

import numpy as np
import pytest
import torch

from fwp_fairseq.config import SiteConfig
from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.modules.attention_transfer import AttentionTransfer, softmax_weights
from tests import naive
from tests.modules.attention import EMBED, HEADS, build, ragged, random
from tests.tolerances import assert_close

D_KEY = EMBED // HEADS
SITES = ("encoder", "cross")


def call(module, query, key, mask, **options):
    return module(query, key, key, key_padding_mask=mask, static_kv=module.site == "cross", **options)


def inputs(site, left=True):
    """Queries, keys, and the mask of the keys."""
    query = random(6)
    key = random(7) if site == "cross" else query
    return query, key, ragged(length=len(key), left=left)


@torch.no_grad()
def expected(module, query, key, mask):
    """(output (T, B, C), weights (H, B, T, S)), one head, row, query, slot and key after the other."""
    q, k, v = (
        projection(x).unflatten(-1, (HEADS, D_KEY)).numpy()
        for projection, x in ((module.q_proj, query), (module.k_proj, key), (module.v_proj, key))
    )
    phi, (T, B), S = module.feature_map, query.shape[:2], len(key)
    weights, out = np.zeros((HEADS, B, T, S)), np.zeros((T, B, HEADS, D_KEY))
    for h, b in np.ndindex(HEADS, B):
        tokens = [j for j in range(S) if not mask[b, j]]
        slots = range(min(phi.d_dot, len(tokens)))
        W, c = phi.weight[h].numpy(), float(phi.sharpness[h])
        shares = {}
        for position, j in enumerate(tokens):
            own = position if len(tokens) <= phi.d_dot else position * phi.d_dot // len(tokens)
            shares[j] = naive._softmax([float(np.dot(W[s], k[j, b, h])) + c * (s == own) for s in slots])
        held = [sum(shares[j][s] for j in tokens) for s in slots]
        means = [sum(shares[j][s] * k[j, b, h] for j in tokens) / held[s] for s in slots]
        for t in range(T):
            scores = [
                np.dot(q[t, b, h], mean) / math.sqrt(D_KEY) + math.log(n) for mean, n in zip(means, held, strict=True)
            ]
            a = naive._softmax([float(score) for score in scores])
            for j in tokens:
                weights[h, b, t, j] = sum(a[s] * shares[j][s] / held[s] for s in slots)
                out[t, b, h] += weights[h, b, t, j] * v[j, b, h]
    return module.out_proj(torch.from_numpy(out).flatten(2)), torch.from_numpy(weights)


@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("left", [False, True], ids=["right pads", "left pads"])
@pytest.mark.parametrize("d_dot", [3, 9])
@pytest.mark.parametrize("site", SITES)
def test_computes_what_is_documented(site, d_dot, left, backend):
    module = build(site, "slots", d_dot=d_dot, backend=backend)
    query, key, mask = inputs(site, left)
    out, weights = call(module, query, key, mask, need_head_weights=True)
    for found, wanted in zip((out, weights), expected(module, query, key, mask), strict=True):
        assert_close(found, wanted, "operator")
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), "rounding")


@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("site", SITES)
def test_gradients(site, backend):
    module, (query, key, mask) = build(site, "slots", d_dot=3, backend=backend), inputs(site)
    parameters = {name: x for name, x in module.named_parameters() if x.is_floating_point()}

    def out(query, key, *values):
        given = dict(zip(parameters, values, strict=True))
        arguments = {"key_padding_mask": mask, "static_kv": site == "cross", "need_weights": False}
        return torch.func.functional_call(module, given, (query, key, key), arguments)[0]

    tensors = [x.detach().clone().requires_grad_() for x in (query, key, *parameters.values())]
    assert torch.autograd.gradcheck(out, tensors)


@pytest.mark.parametrize("site", SITES)
@torch.no_grad()
def test_is_softmax_attention_where_every_token_has_a_slot(site):
    module, (query, key, mask) = build(site, "slots", d_dot=7), inputs(site)
    module.feature_map.weight.zero_()
    module.feature_map.sharpness.fill_(40)
    _, weights = call(module, query, key, mask, need_head_weights=True)
    q, k = (module._split_heads(projection(x)) for projection, x in ((module.q_proj, query), (module.k_proj, key)))
    assert_close(weights, softmax_weights(q, k, mask, causal=False), "operator")


@torch.no_grad()
def test_fresh_slots_are_nearly_that():
    module, (query, key, mask) = build("cross", "slots", d_dot=7), inputs("cross")
    module.feature_map.weight.zero_()
    module.feature_map.sharpness.copy_(build_feature_map("slots", D_KEY, 7, heads=HEADS).sharpness)
    _, fresh = call(module, query, key, mask, need_head_weights=True)
    module.feature_map.sharpness.fill_(40)
    _, sharp = call(module, query, key, mask, need_head_weights=True)
    assert 0 < (fresh - sharp).abs().sum(-1).max() < 4 * math.exp(-4)


@pytest.mark.parametrize("site", SITES)
@torch.no_grad()
def test_pads_change_nothing(site):
    """Neither their number nor their side: a sentence translates alike in every batch."""
    module, x = build(site, "slots", d_dot=4), random(6, batch=1)
    alone, _ = call(module, x, x, None)
    for left in (False, True):
        pads = random(5, batch=1)
        padded = torch.cat([pads, x] if left else [x, pads])
        mask = torch.tensor([[True] * 5 + [False] * 6 if left else [False] * 6 + [True] * 5])
        out, _ = call(module, padded, padded, mask)
        assert_close(out[5:] if left else out[:6], alone, "operator")


@pytest.mark.parametrize("backend", ["auto", "reference"])
@torch.no_grad()
def test_decoding_step_by_step(backend):
    module = build("cross", "slots", d_dot=4, backend=backend)
    (query, source, mask), state = inputs("cross"), {}
    whole, weights = call(module, query, source, mask)
    for t in range(len(query)):
        out, step_weights = call(module, query[t : t + 1], source if t == 0 else None, mask, incremental_state=state)
        assert_close(out, whole[t : t + 1], "operator")
        assert_close(step_weights, weights[:, t : t + 1], "operator")
        if t == 2:
            order = torch.tensor([2, 0, 0])
            module.reorder_incremental_state(state, order)
            query, whole, weights, mask = query[:, order], whole[:, order], weights[order], mask[order]
    if backend == "reference":
        assert module.load_state(state).W.shape == (3, HEADS, 4, 2 * D_KEY)
    else:  # the sources, which the hypotheses share
        assert module._get_input_buffer(state)["cache"].keys.shape == (2, HEADS, D_KEY, 4)


@torch.no_grad()
def test_layer_outside_of_fairseq():
    """A source is written, more is written on top of it, and everything is read."""
    layer = FastWeightAttention(EMBED, HEADS, causal=False, feature_map="slots", d_dot=16).double()
    x, first, second = random(3, batch=3), random(3, batch=4), random(3, batch=5)
    out, state = layer(x, first)
    assert_close(layer.read(x, state), out, "operator")
    _, both = layer(x, second, state=state)
    _, alone = layer(x, second)
    assert_close(both.W, state.W + alone.W, "operator")
    assert_close(both.z.sum(-1), torch.full((3, HEADS), 9.0).double(), "operator")
    nothing = layer.nothing_written(3, x)
    assert nothing.W.shape == both.W.shape and nothing.z.shape == both.z.shape
    assert layer.read(x, nothing).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("site", SITES)
@torch.no_grad()
def test_half_precision(site, dtype):
    narrow, (query, key, mask) = build(site, "slots", d_dot=4).to(dtype), inputs(site)
    query, key = query.to(dtype), key.to(dtype)
    out, _ = call(narrow, query, key, mask)
    wanted, _ = call(copy.deepcopy(narrow).double(), query.double(), key.double(), mask)
    assert out.dtype == dtype
    assert_close(out.double(), wanted, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("site", SITES)
def test_attention_transfer(site):
    """The distance to softmax attention is 0 where every token has a slot, and with fewer slots it teaches them."""
    (query, key, mask), distances = inputs(site), []
    for d_dot in (7, 3):
        module = build(site, "slots", d_dot=d_dot)
        torch.nn.init.zeros_(module.feature_map.weight)
        torch.nn.init.constant_(module.feature_map.sharpness, 40.0 if d_dot == 7 else 1.0)
        pads = ragged(length=len(query))
        with AttentionTransfer(module).compared({site: pads}) as found:
            call(module, query, key, mask)
        (distance,) = found[site]
        assert (distance >= -1e-12).all() and (distance[pads] == 0).all()
        distance.sum().backward()
        distances.append(distance.sum().item())
    assert abs(distances[0]) < 1e-9 < 0.01 < distances[1]
    assert all(parameter.grad.abs().max() > 1e-6 for parameter in AttentionTransfer(module).parameters())


@pytest.mark.parametrize(
    "causal, options, named",
    [
        (True, {}, ("feature_map",)),
        (False, {"update_rule": "delta"}, ("update_rule", "feature_map")),
        (False, {"normalizer": "l2"}, ("normalizer", "feature_map")),
        (False, {"output_norm": "rms"}, ("output_norm", "feature_map")),
        (False, {"update_rule": "delta", "fast_net": "rnn"}, ("fast_net", "feature_map")),
        (False, {"update_rule": "delta", "recurrent": "tanh"}, ("recurrent", "feature_map")),
    ],
)
def test_what_slots_contradict(causal, options, named):
    config = SiteConfig("slots", None, **{"update_rule": "sum", "normalizer": "auto", **options})
    assert config.contradiction("decoder" if causal else "cross").options == named
    assert SiteConfig("slots", None, "sum", "auto").contradiction("cross") is None

"""A window in causal attention: the module against loops in float64, gradients, decoding, states, what is refused."""

import math

import numpy as np
import pytest
import torch

from fwp_fairseq.contradictions import contradiction
from fwp_fairseq.options import SiteOptions
from tests.modules.attention import EMBED, HEADS, build, naive_map, ragged, random
from tests.pairs import covering
from tests.tolerances import assert_close

D_KEY = EMBED // HEADS
LENGTH = 9
BACKENDS = ["auto", "chunked", "reference"]
MAPS = {"hedgehog": 8, "dpfp": 12, "favor": 8, "t2r": 7, "rfa": 8}


def windowed(window, feature_map="hedgehog", **options):
    module = build("decoder", feature_map, d_dot=MAPS[feature_map], window=window, **options)
    for parameter in (module.memory.weight, module.memory.bias):
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def call(module, x, mask=None, **options):
    return module(x, x, x, key_padding_mask=mask, **options)


@torch.no_grad()
def expected(module, x, mask=None):
    """(output (L, B, C), weights (H, B, L, L)), one head, row, query and key after the other."""
    projections = module.q_proj, module.k_proj, module.v_proj
    q, k, v = (projection(x).unflatten(-1, (HEADS, D_KEY)).numpy() for projection in projections)
    (L, B), w = x.shape[:2], module.memory.size
    weights, out = np.zeros((HEADS, B, L, L)), np.zeros((L, B, HEADS, D_KEY))
    for h, b, t in np.ndindex(HEADS, B, L):
        phi_q, phi_k = (
            naive_map(phi, h) for phi in (module.memory.features.query_map or module.feature_map, module.feature_map)
        )
        tokens = [j for j in range(t + 1) if mask is None or not mask[b, j]]
        scores = {j: float(np.dot(q[t, b, h], k[j, b, h])) / math.sqrt(D_KEY) for j in tokens[-w:]}
        if t not in tokens:  # what is read at a pad is arbitrary
            out[t, b, h] = np.nan
            continue
        u, bias = module.memory.weight[h].numpy(), float(module.memory.bias[h])
        gain = math.exp(float(np.dot(u, q[t, b, h])) + bias)
        shares = {
            j: math.exp(scores[j] - max(scores.values()))
            if j in scores
            else gain * float(np.dot(phi_q(q[t, b, h]), phi_k(k[j, b, h])))
            for j in tokens
        }
        for j, share in shares.items():
            weights[h, b, t, j] = share / sum(shares.values())
            out[t, b, h] += weights[h, b, t, j] * v[j, b, h]
    return module.out_proj(torch.from_numpy(out).flatten(2)), torch.from_numpy(weights)


@pytest.mark.parametrize(
    "feature_map, window, pads, backend",
    covering(MAPS, [1, 2, 4, LENGTH, 20], [None, "right", "left", "within"], BACKENDS, strength=3),
)
def test_computes_what_is_documented(feature_map, window, pads, backend):
    module, x = windowed(window, feature_map, backend=backend), random(LENGTH)
    mask = None if pads is None else ragged(length=LENGTH, left=pads == "left")
    if pads == "within":
        mask = mask.roll(-2, 1)
    out, weights = call(module, x, mask, need_head_weights=True)
    wanted, wanted_weights = expected(module, x, mask)
    arbitrary = wanted.isnan().any(-1)
    assert arbitrary.any() == (pads is not None) and out.isfinite().all()
    assert_close(out[~arbitrary], wanted[~arbitrary], "operator")
    arbitrary = arbitrary.T.expand(HEADS, -1, -1)
    assert_close(weights[~arbitrary], wanted_weights[~arbitrary], "operator")


@pytest.mark.parametrize("backend", ["auto", "chunked"])
@pytest.mark.parametrize("window", [2, 5])
def test_gradients(window, backend):
    module, x, mask = windowed(window, backend=backend), random(7), ragged()
    parameters = {name: x for name, x in module.named_parameters() if x.is_floating_point()}

    def out(x, *values):
        given = dict(zip(parameters, values, strict=True))
        arguments = {"key_padding_mask": mask, "need_weights": False}
        found = torch.func.functional_call(module, given, (x, x, x), arguments)[0]
        return found.masked_fill(mask.T[..., None], 0)

    tensors = [x.detach().clone().requires_grad_() for x in (x, *parameters.values())]
    assert torch.autograd.gradcheck(out, tensors, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("feature_map", MAPS)
def test_a_text_within_the_window_reaches_every_parameter(feature_map, backend):
    """Distributed training waits for a gradient of each."""
    module = windowed(20, feature_map, backend=backend)
    call(module, random(5), need_weights=False)[0].sum().backward()
    assert [name for name, parameter in module.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("feature_map, window, backend, first", covering(MAPS, [1, 3, 20], BACKENDS, [1, 4]))
@torch.no_grad()
def test_decoding_with_hypotheses_that_change_places(feature_map, window, backend, first):
    """A prefix at once, then step by step; after 140 positions the lazy form has folded its block twice."""
    module = windowed(window, feature_map, backend=backend)
    x, state = random(140, batch=4), {}
    mask = torch.zeros(4, 140, dtype=torch.bool)
    mask[1, :2] = mask[2, 5:7] = True
    whole, _ = call(module, x, mask)
    out, _ = call(module, x[:first], mask[:, :first], incremental_state=state)
    assert_close(out[:, [0, 3]], whole[:first, [0, 3]], "operator")
    rows = torch.arange(4)
    for t in range(first, 140):
        if t % 14 == 0:
            order = torch.tensor([[2, 0, 0, 1], [1, 3, 3], [0, 2, 1, 1]][t // 14 % 3]) % len(rows)
            module.reorder_incremental_state(state, order)
            x, mask, rows = x[:, order], mask[order], rows[order]
            whole, _ = call(module, x, mask)
        if t % 7 in (0, 3) or t > 130:
            out, _ = call(module, x[t : t + 1], mask[:, : t + 1], incremental_state=state)
            assert_close(out[0, ~mask[:, t]], whole[t, ~mask[:, t]], "operator")
        else:
            call(module, x[t : t + 1], mask[:, : t + 1], incremental_state=state)


@torch.no_grad()
def test_sums_over_a_long_text_are_more_than_float16_can_hold():
    wide, x = build("decoder", "elu", window=4), 2.5 * random(3000, batch=1)
    wanted = call(wide, x)[0]
    narrow = build("decoder", "elu", window=4)
    narrow.load_state_dict(wide.state_dict())
    narrow, state = narrow.half(), {}
    assert_close(call(narrow, x.half())[0].double(), wanted, "float16")
    for t in range(0, 3000, 500):
        out, _ = call(narrow, x[t : t + 500].half(), incremental_state=state)
        assert_close(out.double(), wanted[t : t + 500], "float16")


@pytest.mark.parametrize(
    "causal, options, named",
    [
        (False, {}, ("window",)),
        (True, {"update_rule": "delta"}, ("window", "update_rule")),
        (True, {"update_rule": "gated"}, ("window", "update_rule")),
        (True, {"normalizer": "l2"}, ("window", "normalizer")),
        (True, {"output_norm": "rms"}, ("window", "output_norm")),
        (True, {"update_rule": "delta", "fast_net": "mlp"}, ("window", "fast_net")),
        (True, {"update_rule": "delta", "recurrent": "tanh"}, ("window", "recurrent")),
    ],
)
def test_what_a_window_contradicts(causal, options, named):
    usual = {"feature_map": "elu", "d_dot": None, "update_rule": "sum", "normalizer": "auto", "window": 4}
    found = contradiction(SiteOptions(**{**usual, **options}), "decoder" if causal else "encoder")
    assert found.options == named
    assert contradiction(SiteOptions(**usual), "decoder") is None

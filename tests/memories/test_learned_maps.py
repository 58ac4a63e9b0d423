"""Hedgehog, T2R and RFA in attention: the function and its gradients, decoding, and whose the parameters are."""

import pytest
import torch
from torch import nn

from fwp_fairseq.feature_maps import LearnedMap
from tests.modules.attention import EMBED, HEADS, assert_as_documented, build, ragged, random
from tests.tolerances import assert_close

D_KEY = EMBED // HEADS
WIDTHS = {"hedgehog": 10, "t2r": 9, "rfa": 64}


@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize(
    "feature_map, rule, qk_norm",
    [
        ("hedgehog", "sum", "none"),
        ("t2r", "sum", "none"),
        ("hedgehog", "delta", "l2"),
        ("t2r", "gated", "l2"),
        ("rfa", "gated", "none"),
    ],
)
def test_computes_what_the_papers_say(feature_map, rule, qk_norm, site):
    module = build(site, feature_map, rule, d_dot=WIDTHS[feature_map], qk_norm=qk_norm)
    assert_as_documented(module, site)


@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("feature_map, rule", [("hedgehog", "delta"), ("t2r", "gated"), ("rfa", "gated")])
@torch.no_grad()
def test_decoding_step_by_step(feature_map, rule, backend):
    for site in ("decoder", "cross"):
        module = build(site, feature_map, rule, d_dot=WIDTHS[feature_map], backend=backend)
        query, source, state = random(40), random(7), {}
        key = source if site == "cross" else query
        whole, weights = module(query, key, key, static_kv=site == "cross")
        for t in range(40):
            step = query[t : t + 1]
            key = source if site == "cross" else step
            out, step_weights = module(step, key, key, incremental_state=state, static_kv=site == "cross")
            assert_close(out, whole[t : t + 1], "operator")
            assert site == "decoder" or (step_weights - weights[:, t : t + 1]).abs().max() < 1e-10
            if t == 20:
                order = torch.tensor([2, 0, 0])
                module.reorder_incremental_state(state, order)
                query, source, whole, weights = query[:, order], source[:, order], whole[:, order], weights[order]


@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("feature_map, rule", [("hedgehog", "sum"), ("t2r", "gated"), ("hedgehog", "delta")])
@torch.no_grad()
def test_matrices_are_multiplied_into_the_projections_for_decoding(feature_map, rule, site):
    module, query, source, state = build(site, feature_map, rule, d_dot=WIDTHS[feature_map]), random(6), random(7), {}
    key, static = (source, True) if site == "cross" else (query, False)
    whole, weights = module(query, key, key, key_padding_mask=ragged(length=len(key)), static_kv=static)
    module.make_generation_fast_(need_attn=True)
    module.make_generation_fast_(need_attn=True)
    assert module.q_proj.weight.shape == module.k_proj.weight.shape == (HEADS * module.feature_map.n, EMBED)
    out, per_head = module(query, key, key, key_padding_mask=ragged(length=len(key)), static_kv=static)
    assert_close(out, whole, "operator")
    assert_close(per_head, weights, "operator")
    if site == "encoder":
        return
    whole, _ = module(query, key, key, static_kv=static)
    for t in range(6):
        step = query[t : t + 1]
        out, _ = module(step, *[source if static else step] * 2, incremental_state=state, static_kv=static)
        assert_close(out, whole[t : t + 1], "operator")


@pytest.mark.parametrize("normalizer", ["l2", "sum"])
@torch.no_grad()
def test_matrices_are_multiplied_where_features_are_finished_first(normalizer):
    """Their number is not that of the projection's outputs."""
    module, query = build("cross", "hedgehog", d_dot=10, normalizer=normalizer), random(6)
    expected, _ = module(query, query, query)
    module.make_generation_fast_()
    assert module.q_proj.weight.shape == (HEADS * 5, EMBED)
    assert_close(module(query, query, query)[0], expected, "operator")


@pytest.mark.parametrize("options", [{"qk_norm": "l2"}, {"window": 3}, {"rule": "delta", "fast_net": "rnn"}], ids=str)
def test_matrices_stay_where_the_projections_are_read_otherwise(options):
    module, query = build("decoder", "hedgehog", d_dot=10, **options), random(6)
    before, _ = module(query, query, query)
    module.make_generation_fast_(need_attn=True)
    assert module.q_proj.weight.shape == (EMBED, EMBED)
    assert torch.equal(module(query, query, query)[0], before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@torch.no_grad()
def test_matrices_are_multiplied_in_half_precision(dtype):
    module = build(feature_map="t2r", d_dot=9)
    expected = torch.einsum("hnd,hdc->hnc", module.feature_map.weight, module.q_proj.weight.view(HEADS, D_KEY, EMBED))
    module.to(dtype).fold_maps()
    assert module.q_proj.weight.dtype == dtype
    limit = 3 * torch.finfo(dtype).eps * expected.abs().max()
    assert (module.q_proj.weight.double() - expected.flatten(0, 1)).abs().max() < limit


def test_whose_the_parameters_are():
    """T2R has one W and b for queries and keys, RFA one sigma, Hedgehog a W for each."""
    shapes = {}
    for name, d_dot in WIDTHS.items():
        parameters = build(feature_map=name, d_dot=d_dot).named_parameters()
        shapes[name] = {key: tuple(parameter.shape) for key, parameter in parameters if "_map" in key}
    assert shapes == {
        "t2r": {
            "memory.features.feature_map.weight": (HEADS, 9, D_KEY),
            "memory.features.feature_map.bias": (HEADS, 9),
        },
        "hedgehog": {f"memory.features.{side}_map.weight": (HEADS, 5, D_KEY) for side in ("feature", "query")},
        "rfa": {"memory.features.feature_map.sigma": (HEADS, D_KEY)},
    }


def test_compiled_relu_serves_t2r():
    """No feature is computed in Python: the operator is given what is before relu."""
    module, query = build(feature_map="t2r", d_dot=9), random(4)
    prepared = module.queries(query)
    assert (prepared < 0).any() and module.feature_map.rest().kernel == "relu"


@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("feature_map, d_dot", [("hedgehog", 2 * D_KEY), ("hedgehog", 2), ("t2r", D_KEY)])
def test_training_multiplies_the_matrices_first(feature_map, d_dot, site, monkeypatch):
    """Where that is cheaper: the same output and the same gradient of every parameter."""
    module, query, key = build(site, feature_map, d_dot=d_dot), random(5), random(7)
    if site != "cross":
        key = query
    module.feature_map.register_forward_hook(lambda *_: pytest.fail("the operator is given what is before the map"))
    inputs, calls = (query, key, key), []
    folded = LearnedMap.folded
    monkeypatch.setattr(LearnedMap, "folded", lambda *given: calls.append(given[1]) or folded(*given))

    def run():
        module.zero_grad()
        out = module(*inputs)[0]
        (out * torch.arange(out.numel()).view_as(out).sin()).sum().backward()
        return out.detach(), {name: parameter.grad.clone() for name, parameter in module.named_parameters()}

    wanted, gradients = run()
    assert not calls  # evaluation
    module.train()
    out, found = run()
    assert calls == [module.q_proj, module.k_proj]
    assert_close(out, wanted, "operator")
    for name, gradient in gradients.items():
        assert_close(found[name], gradient, "operator")


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.q_proj.register_forward_hook(lambda *_: None),
        lambda module: module.q_proj.register_forward_pre_hook(lambda *_: None),
        lambda module: setattr(module, "q_proj", nn.Sequential(module.q_proj)),
    ],
)
def test_a_projection_with_something_attached_is_called(change, monkeypatch):
    """Quantisation noise for one is a hook."""
    module, query = build(feature_map="hedgehog", d_dot=2 * D_KEY).train(), random(5)
    change(module)
    monkeypatch.setattr(LearnedMap, "folded_product", lambda *_: pytest.fail("the projection is not called"))
    module.queries(query)


@pytest.mark.parametrize("feature_map, d_dot, batch", [("hedgehog", 2 * D_KEY, 2), ("t2r", 4 * D_KEY, 9)])
def test_short_calls_and_wide_matrices_are_multiplied_one_by_one(feature_map, d_dot, batch, monkeypatch):
    """5 times 2 positions are fewer than the projection's inputs; 24 rows cost more than the projection itself."""
    module = build(feature_map=feature_map, d_dot=d_dot).train()
    monkeypatch.setattr(LearnedMap, "folded_product", lambda *_: pytest.fail("this costs more"))
    module.queries(random(5, batch))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("feature_map", ["hedgehog", "t2r"])
def test_half_precision(feature_map, dtype):
    wide = build("decoder", feature_map, d_dot=WIDTHS[feature_map])
    query = random(12)
    wanted = wide(query, query, query)[0]
    out = wide.to(dtype)(*[query.to(dtype)] * 3)[0]
    assert out.dtype == dtype and (out.double() - wanted).abs().max() < 0.05 * wanted.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = wide.float()(*[query.float()] * 3)[0]
    assert (mixed.double() - wanted).abs().max() < 0.05 * wanted.abs().max()

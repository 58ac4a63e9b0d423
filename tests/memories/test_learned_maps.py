"""Hedgehog, T2R and RFA in attention: the function and its gradients, decoding, and whose the parameters are."""

import pytest
import torch

from tests.modules.attention import EMBED, HEADS, assert_as_documented, build, random
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

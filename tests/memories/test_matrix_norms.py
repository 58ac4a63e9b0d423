"""Features of length 1, and the norm of what is read."""

import pytest
import torch

from tests.modules.attention import assert_gradients, build, expected, ragged, random
from tests.tolerances import assert_close

RMS = {"output_norm": "rms"}
CASES = {
    "l2-delta": ("decoder", "dpfp", "delta", {"normalizer": "l2", **RMS}),
    "l2-gated": ("encoder", "elu", "gated", {"normalizer": "l2"}),
    "rms-in-place-of-a-denominator": ("decoder", "favor", "sum", {**RMS}),
    "rms-delta": ("cross", "elu", "delta", {**RMS}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("left", [False, True])
def test_computes_what_is_documented(case, left):
    site, feature_map, rule, options = CASES[case]
    module = build(site, feature_map, rule, **options)
    query = random(6)
    key = random(7) if site == "cross" else query
    mask = ragged(length=len(key), left=left)
    # A NaN at a pad reaches nothing.
    seen = key.masked_fill(mask.T[..., None], float("nan")) if site == "cross" else key
    out, _ = module(query, seen, seen, key_padding_mask=mask, static_kv=site == "cross")
    assert_close(out, expected(module, query, key, mask), "operator")
    assert_gradients(module, query, key, mask)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case[0] != "encoder"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
@torch.no_grad()
def test_decoding_with_shared_sources_and_reordering(case, backend):
    site, feature_map, rule, options = CASES[case]
    module = build(site, feature_map, rule, backend=backend, **options)
    source, mask, of = random(7, 2), ragged(2), torch.tensor([0, 0, 0, 1, 1])
    query, state = random(40, 5), {}
    key, pads = (source[:, of], mask[of]) if site == "cross" else (query, None)
    for t in range(40):
        step = query[t : t + 1]
        out, weights = module(
            *(step, key if site == "cross" else step, key), key_padding_mask=pads, incremental_state=state,
            static_kv=site == "cross",
        )  # fmt: skip
        whole, all_weights = module(query[: t + 1], key[: t + 1] if site == "decoder" else key, key, pads)
        assert_close(out, whole[t:], "operator")
        assert site == "decoder" or (weights - all_weights[:, t:]).abs().max() < 1e-10
        if t in (2, 35):
            order = torch.tensor([1, 0, 0, 4, 3] if t == 2 else [4, 1])
            module.reorder_incremental_state(state, order)
            query = query[:, order]
            key, pads = (key[:, order], pads[order]) if site == "cross" else (query, None)


@pytest.mark.parametrize("case", CASES)
def test_half_precision(case):
    site, feature_map, rule, options = CASES[case]
    module, query = build(site, feature_map, rule, **options), random(12)
    wanted = module(query, query, query)[0]
    half, state = module.bfloat16(), {}
    with torch.no_grad():
        out = half(*[query.bfloat16()] * 3)[0]
        assert out.dtype == torch.bfloat16 and (out.double() - wanted).abs().mean() < 0.05 * wanted.abs().mean()
        if site != "encoder":
            step = query[:1].bfloat16()
            key = query.bfloat16() if site == "cross" else step
            first = half(step, key, key, incremental_state=state, static_kv=site == "cross")[0]
            assert first.dtype == torch.bfloat16 and (first - out[:1]).abs().max() < 0.05 * wanted.abs().max()

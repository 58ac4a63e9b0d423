"""Features of length 1, and the norm of what is read."""

import pytest

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

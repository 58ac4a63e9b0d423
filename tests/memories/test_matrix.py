"""One matrix in attention, with every kind of map, norm and direction: values and gradients."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.ops import RULES
from fwp_fairseq.options import SiteOptions
from tests.modules.attention import EMBED, HEADS, assert_gradients, build, expected, ragged, random
from tests.pairs import covering
from tests.tolerances import assert_close

NORMALIZERS = ("auto", "attention", "sum", "both", "none")
WIDTHS = {"hedgehog": 10, "t2r": 9, "rfa": 64, "favor": 16, "dpfp": 24}
EVERYWHERE = ("encoder", "decoder", "cross")
L2, BOTH_WAYS = {"qk_norm": "l2"}, {"passes": "both-ways"}
# Map, rule, further options, sites.
CASES = [
    ("hedgehog", "sum", {}, EVERYWHERE),
    ("t2r", "sum", {}, EVERYWHERE),
    ("hedgehog", "delta", L2, EVERYWHERE),
    ("t2r", "gated", L2, EVERYWHERE),
    ("rfa", "gated", {}, EVERYWHERE),
    ("favor", "sum", L2, EVERYWHERE),
    ("elu", "delta", L2, EVERYWHERE),
    ("dpfp", "delta", {"normalizer": "l2", "output_norm": "rms"}, ("decoder",)),
    ("elu", "gated", {"normalizer": "l2"}, ("encoder",)),
    ("favor", "sum", {"output_norm": "rms"}, ("decoder",)),
    ("elu", "delta", {"output_norm": "rms"}, ("cross",)),
    ("dpfp", "delta", BOTH_WAYS, ("encoder",)),
    ("hedgehog", "delta", {"normalizer": "l2", **BOTH_WAYS}, ("encoder",)),
    ("favor", "gated", BOTH_WAYS, ("encoder",)),
    ("elu", "gated_delta", {"normalizer": "both", **BOTH_WAYS}, ("encoder",)),
    *(
        (feature_map, rule, {"normalizer": normalizer}, (site,))
        for feature_map, rule, normalizer, site in covering(["elu", "dpfp", "favor"], RULES, NORMALIZERS, EVERYWHERE)
    ),
]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(
    "site, feature_map, rule, options", [(site, *case) for *case, sites in CASES for site in sites], ids=str
)
def test_computes_what_is_documented(site, feature_map, rule, options, left):
    for backend in ("auto", "chunked", "reference") if "passes" in options else ("auto",):
        module = build(site, feature_map, rule, d_dot=WIDTHS.get(feature_map), backend=backend, **options)
        query = random(6)
        key = random(7) if site == "cross" else query
        mask = ragged(length=len(key), left=left)
        # A NaN at a pad reaches nothing.
        seen = key.masked_fill(mask.T[..., None], float("nan")) if site == "cross" else key
        out, _ = module(query, seen, seen, key_padding_mask=mask, static_kv=site == "cross")
        assert_close(out, expected(module, query, key, mask), "operator")
        if not left:  # tests/ops has the gradients with pads anywhere
            assert_gradients(module, query, key, mask)


@torch.no_grad()
def test_what_a_position_reads_both_ways():
    """In the first heads nothing of later words, in the others nothing of earlier ones; the weights say so, too."""
    module, query = build("encoder", "elu", "delta", passes="both-ways"), random(7)
    module.out_proj = torch.nn.Identity()
    out, weights = module(query, query, query, need_head_weights=True)
    other = query.clone()
    other[3] = random(1)[0]
    changed = (module(other, other, other)[0] != out).unflatten(-1, (HEADS, -1)).any(-1).any(1).T
    half = [False] * 3 + [True] * 4, [True] * 4 + [False] * 3
    assert changed.tolist() == [list(half[head >= HEADS // 2]) for head in range(HEADS)]
    ahead, back = weights.chunk(2)
    assert torch.equal(ahead, ahead.tril()) and torch.equal(back, back.triu())
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), "operator")


@pytest.mark.parametrize(
    "heads, options, expected",
    [
        (2, {"causal": False}, "causal=True with it, no initial_state and no return_state"),
        (2, {"return_state": True}, "causal=True with it, no initial_state and no return_state"),
        (
            2,
            {"initial_state": (torch.zeros(1, 2, 4, 4), None)},
            "causal=True with it, no initial_state and no return_state",
        ),
        (3, {}, "an even number of heads"),
    ],
)
def test_both_ways_are_refused_where_they_have_no_meaning(heads, options, expected):
    x = torch.ones(1, 5, heads, 4)
    with pytest.raises(ValueError, match=f"delta_rule: both_ways is True.*, expected {expected}"):
        ops.delta_rule(x, x, x, x[..., 0], both_ways=True, **options)
    odd = SiteOptions(feature_map="elu", update_rule="delta", passes="both-ways")
    with pytest.raises(ValueError, match="even number of heads, got num_heads = 3"):
        FastWeightSiteAttention(EMBED * 3, 3, site="encoder", options=odd)

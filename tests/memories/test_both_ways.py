"""Encoder self-attention whose heads go through the source in both directions."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.modules import SiteAttention
from fwp_fairseq.options import SiteOptions
from tests.modules.attention import EMBED, HEADS, assert_gradients, build, expected, ragged, random
from tests.tolerances import assert_close


@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(
    "feature_map, rule, normalizer",
    [
        ("dpfp", "delta", "auto"),
        ("hedgehog", "delta", "l2"),
        ("favor", "gated", "auto"),
        ("elu", "gated_delta", "both"),
    ],
)
def test_each_half_of_the_heads_has_its_direction(feature_map, rule, normalizer, left, backend):
    module = build("encoder", feature_map, rule, normalizer, backend=backend, passes="both-ways")
    query, mask = random(7), ragged(left=left)
    out, _ = module(query, query, query, key_padding_mask=mask)
    assert_close(out, expected(module, query, query, mask), "operator")
    assert_gradients(module, query, query, mask)


@torch.no_grad()
def test_what_a_position_reads():
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


def test_an_odd_number_of_heads_is_refused():
    options = SiteOptions(feature_map="elu", update_rule="delta", passes="both-ways")
    with pytest.raises(ValueError, match="even number of heads, got num_heads = 3"):
        SiteAttention(EMBED * 3, 3, site="encoder", options=options)


@pytest.mark.parametrize(
    "heads, options, expected",
    [
        (2, {"causal": False}, "False without causal and with a state"),
        (2, {"return_state": True}, "False without causal and with a state"),
        (2, {"initial_state": (torch.zeros(1, 2, 4, 4), None)}, "False without causal and with a state"),
        (3, {}, "an even number of heads"),
    ],
)
def test_the_operator_refuses_what_has_no_meaning(heads, options, expected):
    x = torch.ones(1, 5, heads, 4)
    with pytest.raises(ValueError, match=f"delta_rule: both_ways is True.*, expected {expected}"):
        ops.delta_rule(x, x, x, x[..., 0], both_ways=True, **options)

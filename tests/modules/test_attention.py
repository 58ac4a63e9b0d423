"""FastWeightSiteAttention behaves as fairseq expects; tests/memories/test_matrix.py has what it computes."""

import pytest
import torch

from fwp_fairseq.memories.decay import Decay
from fwp_fairseq.modules.incremental_state import set_source_rows
from fwp_fairseq.ops import RULES
from tests.modules.attention import HEADS, build, expected, ragged, random
from tests.pairs import covering
from tests.tolerances import TOLERANCES, assert_close

SITES = ("encoder", "decoder", "cross")
NORMALIZERS = ("auto", "attention", "sum", "both", "none")
MAPS = ("elu", "dpfp", "favor")


@pytest.fixture(params=["lazy", "state"])
def form(request):
    """The form of decoding: with autograd, each hypothesis has a state; without, blocks are kept and added lazily."""
    with torch.set_grad_enabled(request.param == "state"):
        yield request.param


def call(module, query, key=None, mask=None, **options):
    key = query if key is None else key
    options.setdefault("static_kv", module.site == "cross")
    return module(query, key, key, key_padding_mask=mask, **options)


def source_for(module, query, length=7):
    return random(length, query.shape[1], module.source_dim) if module.site == "cross" else query


def test_source_of_another_width():
    module = build("cross", rule="delta", source_dim=20)
    query, key = random(4), random(6, width=20)
    assert_close(call(module, query, key)[0], expected(module, query, key), "operator")


@pytest.mark.parametrize("site, feature_map, rule", covering(SITES, MAPS, RULES))
def test_weights(site, feature_map, rule):
    """Weights have shape (B, T, S) or (H, B, T, S), are never negative, are zero on pads, and sum to one."""
    module = build(site, feature_map, rule)
    query, mask = random(7), ragged()
    key = source_for(module, query)
    _, mean = call(module, query, key, mask, need_weights=True)
    _, per_head = call(module, query, key, mask, need_head_weights=True)
    assert mean.shape == (3, 7, 7) and per_head.shape == (HEADS, 3, 7, 7)
    assert_close(mean, per_head.mean(0), "rounding")
    assert (per_head >= 0).all()
    assert not per_head[:, mask[:, None].expand(3, 7, 7)].any()
    # DPFP's sparse features of a query may have no overlap with those of any key; then the row is zero.
    total = per_head.sum(-1)
    assert (((total - 1).abs() < TOLERANCES["rounding"]) | ((total == 0) & (feature_map == "dpfp"))).all()
    if site == "decoder":
        assert not per_head.triu(1).any()
    assert call(module, query, key, mask, need_weights=False)[1] is None


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("normalizer, bound", [("attention", 1e-5), ("both", 3e-5)])
def test_weights_are_the_weights_of_the_values(site, normalizer, bound):
    """With the sum rule and a denominator, the output is the weighted mean of the values, except for eps."""
    module = build(site, "elu", normalizer=normalizer)
    query, mask = random(7), ragged()
    key = source_for(module, query)
    out, per_head = call(module, query, key, mask, need_head_weights=True)
    values = module.v_proj(key).unflatten(-1, (HEADS, -1))
    mean = torch.einsum("hbts,sbhd->tbhd", per_head, values).flatten(2)
    assert (out - module.out_proj(mean)).abs().max() < bound


def test_no_weights_in_training_or_in_steps():
    module = build()
    assert call(module.train(), random(4))[1] is None
    assert call(module.eval(), random(4))[1] is not None
    with torch.no_grad():
        assert call(build("cross"), random(1), random(4), incremental_state={})[1] is None


def test_future_mask_is_accepted_by_a_decoder_and_refused_elsewhere():
    query = random(5)
    future = torch.full((5, 5), float("-inf")).triu(1)
    decoder = build("decoder")
    assert torch.equal(call(decoder, query, attn_mask=future)[0], call(decoder, query)[0])
    for site in ("encoder", "cross"):
        with pytest.raises(NotImplementedError, match=f"attn_mask: the {site} site"):
            call(build(site), query, attn_mask=future)


def test_calls_that_cannot_be_served():
    with pytest.raises(NotImplementedError, match="before_softmax: fast-weight attention has no softmax"):
        call(build("decoder"), random(5), before_softmax=True)
    with pytest.raises(NotImplementedError, match="the encoder site takes whole sequences"):
        call(build("encoder"), random(5), incremental_state={})
    with pytest.raises(ValueError, match="nothing has been written yet"):
        build("cross")(random(5))


def test_masks_of_other_types():
    module, query, mask = build(), random(7), ragged()
    assert torch.equal(call(module, query, mask=mask.to(torch.uint8))[0], call(module, query, mask=mask)[0])


@pytest.mark.parametrize("feature_map, rule, normalizer", covering(MAPS, RULES, NORMALIZERS))
def test_decoding_step_by_step_with_pads(feature_map, rule, normalizer, form):
    module = build("decoder", feature_map, rule, normalizer)
    query = random(9)
    for mask in (None, ragged(length=9), ragged(length=9, left=True)):
        whole, _ = call(module, query, mask=mask)
        state = {}
        for t in range(9):
            step, weights = call(
                module, query[t : t + 1], mask=None if mask is None else mask[:, : t + 1], incremental_state=state
            )
            assert weights is None
            assert_close(step, whole[t : t + 1], "operator")


def test_hypotheses_of_a_sentence_share_its_source(form):
    """Two sentences with different padding have five and three hypotheses, then fewer."""
    module = build("cross", rule="delta")
    source, mask, of = random(7, 2), ragged(2), torch.tensor([0] * 5 + [1] * 3)
    query, state = random(3, 8), {}
    whole, _ = call(module, query, source[:, of], mask[of])
    projected = []
    module.k_proj.register_forward_hook(lambda _, inputs, __: projected.append(inputs[0].shape[1]))
    set_source_rows(state, of[:, None])
    out, _ = call(module, query[:1], source, mask, incremental_state=state)
    assert projected == [2]
    assert_close(out, whole[:1], "operator")
    order = torch.tensor([6, 0, 1, 7])
    module.reorder_incremental_state(state, order)
    out, _ = call(module, query[1:2, order], None, incremental_state=state)
    assert_close(out, whole[1:2, order], "operator")
    # Nobody says which rows share a source.
    out, _ = call(module, query[:1], source[:, of], mask[of], incremental_state={})
    assert projected[-1] == 8
    assert_close(out, whole[:1], "operator")


@torch.no_grad()
def test_a_beam_that_grows_and_pads_within_a_window():
    module, query, mask = build("decoder", "hedgehog", window=3), random(9), torch.zeros(3, 9, dtype=torch.bool)
    mask[1, 5], state, order = True, {}, torch.tensor([1, 1, 0, 2, 2])
    for t in range(9):
        if t == 4:
            module.reorder_incremental_state(state, order)
            query, mask = query[:, order], mask[order]
        step, _ = call(module, query[t : t + 1], mask=mask[:, : t + 1], incremental_state=state)
        whole, real = call(module, query, mask=mask)[0], ~mask[:, t]
        assert_close(step[0, real], whole[t, real], "operator")


@pytest.mark.needs("native")
def test_decoding_that_began_lazily_is_not_differentiated():
    module, state = build("decoder"), {}
    with torch.no_grad():
        call(module, random(1), incremental_state=state)
    with pytest.raises(RuntimeError, match=r"decoding began under torch\.no_grad\(\)"):
        call(module, random(1), incremental_state=state)


@pytest.mark.parametrize("site", SITES)
def test_dropout_acts_in_training_only(site):
    module, query = build(site, dropout=0.5), random(6)
    first = call(module, query)[0]
    assert torch.equal(call(module, query)[0], first)
    module.train()
    assert not torch.equal(call(module, query)[0], call(module, query)[0])
    module.dropout_module.p = 0.0
    assert torch.equal(call(module, query)[0], first)


@pytest.mark.needs("native")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("site", ["decoder", "cross"])
def test_autocast(site, rule):
    module, query = build(site, rule=rule).float(), random(5).float()
    wanted = call(module, query)[0]
    state = {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, weights = call(module, query, need_weights=True)
        with torch.no_grad():
            for t in range(3):
                step = query[t : t + 1]
                now, _ = call(module, step, query if site == "cross" else step, incremental_state=state)
                assert now.dtype == torch.bfloat16
                assert (now.float() - wanted[t : t + 1]).abs().max() < 0.05 * wanted.abs().max()
    assert out.dtype == torch.bfloat16 and weights.dtype == torch.float32
    assert (out.float() - wanted).abs().max() < 0.05 * wanted.abs().max()
    assert module._get_input_buffer(state)["held"].keys.dtype == torch.float32


@pytest.mark.parametrize("rule", ["delta", "gated_delta"])
def test_beta_up_to_2(rule, form):
    module, query = build("decoder", "elu", rule, "l2", beta_range="0-2"), random(9)
    beta = module.writes(query)[2]["beta"]
    assert beta.max() > 1.5 and beta.min() < 0.5 and (beta < 2).all()
    whole, state = call(module, query)[0], {}
    assert_close(whole, expected(module, query, query), "operator")
    for t in range(9):
        assert_close(call(module, query[t : t + 1], incremental_state=state)[0], whole[t : t + 1], "operator")


def test_memory_is_long_at_the_start():
    """What is left after 100 positions is about 1/e in the first head and 9/10 in the last, in every type."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        decay = Decay(32, 5).to(dtype)
        alpha = decay(torch.zeros(1, 32, dtype=dtype))[0]
        assert alpha.dtype == torch.float32
        wanted = torch.tensor([-1, -(10**-0.25), -(10**-0.5), -(10**-0.75), -0.1]).exp()
        assert ((alpha**100 - wanted).abs() < (1e-4 if dtype == torch.float32 else 0.02)).all()
        alpha = decay(torch.randn(1000, 32).to(dtype))
        assert (alpha > 0).all() and (alpha < 1).all()

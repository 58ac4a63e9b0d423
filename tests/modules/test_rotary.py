"""Rotary positions turn queries and keys as their equations say, whatever becomes of pads, steps and hypotheses."""

import math

import pytest
import torch

from fwp_fairseq.modules import SoftmaxCrossAttention, SoftmaxSelfAttention
from fwp_fairseq.modules.incremental_state import set_source_rows
from fwp_fairseq.options import SiteOptions
from tests.modules.test_softmax_cross_attention import EMBED, HEADS, ORDERS, SOURCE_DIM, TOLD

ROTARY = {"positions": "rotary"}


def _self(site: str, **options) -> SoftmaxSelfAttention:
    torch.manual_seed(1)
    attention = SoftmaxSelfAttention(EMBED, HEADS, site=site, options=SiteOptions("softmax", **options)).double().eval()
    for name in "qkv" if "conv_size" in options else "":
        torch.nn.init.normal_(getattr(attention, f"{name}_conv").weight)
    return attention


def _cross(window: int | None = None, lengths=(50, 100)) -> SoftmaxCrossAttention:
    torch.manual_seed(1)
    options = SiteOptions("softmax", source_window=window, **ROTARY)
    attention = SoftmaxCrossAttention(
        EMBED, HEADS, options=options, kdim=SOURCE_DIM, vdim=SOURCE_DIM, encoder_decoder_attention=True
    ).double()
    with torch.no_grad():
        attention.positions.lengths.copy_(torch.tensor(lengths))
        attention.q_proj.weight *= 4
        attention.k_proj.weight *= 4
    return attention.eval()


def _turn(x: torch.Tensor, angles: list[float]) -> torch.Tensor:
    """The vector x with pairs of coordinates turned as complex numbers."""
    x = x.clone()
    for i, angle in enumerate(angles):
        turned = complex(*x[2 * i : 2 * i + 2].tolist()) * complex(math.cos(angle), math.sin(angle))
        x[2 * i], x[2 * i + 1] = turned.real, turned.imag
    return x


def _attend(attention, query, key, q_angles, k_angles, sees=lambda t, s: True) -> torch.Tensor:
    """What queries (T, C) read of keys (S, C'), a vector after the other; angles are functions of a position."""
    width, out = EMBED // HEADS, torch.zeros_like(query)
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        q = [_turn(attention.q_proj(x)[part], q_angles(t)) for t, x in enumerate(query)]
        k = [_turn(attention.k_proj(x)[part], k_angles(s)) for s, x in enumerate(key)]
        for t in range(len(query)):
            seen = [s for s in range(len(key)) if sees(t, s)]
            weights = torch.stack([q[t] @ k[s] / math.sqrt(width) for s in seen]).softmax(0)
            out[t, part] = sum(w * attention.v_proj(key[s])[part] for w, s in zip(weights, seen, strict=True))
    return attention.out_proj(out)


def _self_angles(position: int) -> list[float]:
    width = EMBED // HEADS
    return [position * 10000 ** (-2 * i / width) for i in range(width // 2)]


def _cross_angles(position: float) -> list[float]:
    pairs = EMBED // HEADS // 4
    return [2 * math.pi * position / (16 * 256 ** (i / max(1, pairs - 1))) for i in range(pairs)]


def _future(length: int) -> torch.Tensor:
    return torch.full((length, length), -torch.inf).triu(1)


@torch.no_grad()
@pytest.mark.parametrize("site", ["encoder", "decoder"])
def test_self_attention_by_hand(site):
    attention, x = _self(site, **ROTARY), torch.randn(6, 2, EMBED).double()
    mask = _future(6) if site == "decoder" else None
    found, weights = attention(x, x, x, attn_mask=mask, need_head_weights=True)
    for row in range(2):
        sees = (lambda t, s: s <= t) if site == "decoder" else (lambda t, s: True)
        expected = _attend(attention, x[:, row], x[:, row], _self_angles, _self_angles, sees)
        torch.testing.assert_close(found[:, row], expected, rtol=0, atol=1e-12)
    assert weights.shape == (HEADS, 2, 6, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@torch.no_grad()
@pytest.mark.parametrize("ratio", [(50, 100), (0, 0)])
def test_cross_attention_by_hand(ratio):
    attention = _cross(lengths=ratio)
    query, key = torch.randn(5, 2, EMBED).double(), torch.randn(7, 2, SOURCE_DIM).double()
    found, _ = attention(query, key, key, static_kv=True)
    slope = 0.5 if ratio[1] else 1
    for row in range(2):
        expected = _attend(
            attention, query[:, row], key[:, row], lambda t: _cross_angles(slope * t), lambda s: _cross_angles(s)
        )
        torch.testing.assert_close(found[:, row], expected, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("options", [ROTARY, {"conv_size": 4}, {"conv_size": 3, **ROTARY}], ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_self_attention_step_by_step_with_pads_and_in_other_orders(options, side):
    attention, x = _self("decoder", **options), torch.randn(9, 3, EMBED).double()
    pads = torch.arange(9) < torch.tensor([0, 2, 3])[:, None]
    pads = pads if side == "left" else pads.flip(1)
    x = x.masked_fill(pads.T[..., None], torch.nan) if side == "left" else x
    x = x.nan_to_num(3.0)  # what a pad holds
    whole, _ = attention(x, x, x, key_padding_mask=pads, attn_mask=_future(9))
    assert whole.isfinite().all()
    for row in range(3):
        alone = x[~pads[row], row][:, None]
        expected, _ = attention(alone, alone, alone, attn_mask=_future(len(alone)))
        torch.testing.assert_close(whole[~pads[row], row], expected[:, 0], rtol=0, atol=1e-12)
    state, rows = {}, torch.arange(3)
    for t in range(9):
        if t == 5:
            rows = torch.tensor([2, 0, 0, 1])
            attention.reorder_incremental_state(state, rows)
        step = x[t : t + 1, rows]
        out, _ = attention(step, step, step, key_padding_mask=pads[rows, t : t + 1], incremental_state=state)
        real = ~pads[rows, t]
        torch.testing.assert_close(out[0, real], whole[t, rows][real], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [ROTARY, {"conv_size": 4}], ids=str)
def test_an_encoder_does_not_see_pads(options, side):
    attention, x = _self("encoder", **options), torch.randn(9, 2, EMBED).double()
    pads = torch.zeros(2, 9, dtype=torch.bool)
    pads[1, slice(0, 4) if side == "left" else slice(5, 9)] = True
    out, _ = attention(x, x, x, key_padding_mask=pads)
    alone = x[~pads[1], 1][:, None]
    torch.testing.assert_close(out[~pads[1], 1], attention(alone, alone, alone)[0][:, 0], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("sides", ["left", "right"])
def test_cross_attention_counts_tokens_not_pads(sides):
    attention = _cross()
    query, key = torch.randn(6, 2, EMBED).double(), torch.randn(9, 2, SOURCE_DIM).double()
    pads, target_pads = torch.zeros(2, 9, dtype=torch.bool), torch.zeros(2, 6, dtype=torch.bool)
    pads[1, slice(0, 4) if sides == "left" else slice(5, 9)] = True
    target_pads[1, slice(0, 2) if sides == "left" else slice(4, 6)] = True
    attention.target_pads = target_pads
    out, _ = attention(query, key, key, pads, static_kv=True)
    attention.target_pads = None
    alone, source = query[~target_pads[1], 1][:, None], key[~pads[1], 1][:, None]
    expected, _ = attention(alone, source, source, static_kv=True)
    torch.testing.assert_close(out[~target_pads[1], 1], expected[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name, beam", TOLD)
@pytest.mark.parametrize("with_grad", [False, True])
@pytest.mark.parametrize("steps_of", [1, 3])
def test_hypotheses_share_sources_with_positions(name, beam, with_grad, steps_of):
    """As the whole target is read at once, without steps."""
    attention = _cross()
    key = torch.randn(7, 3, SOURCE_DIM).double().repeat_interleave(2, 1)
    pads = (torch.arange(7) < torch.arange(3)[:, None]).repeat_interleave(2, 0)
    state, rows, read = {}, torch.arange(6), torch.zeros(0, 6, EMBED).double()
    with torch.set_grad_enabled(with_grad):
        for order in [None, *ORDERS[name]]:
            if order is not None:
                order = torch.tensor(order)
                attention.reorder_incremental_state(state, order)
                rows, read = rows[order], read[:, order]
            query = torch.randn(steps_of, len(rows), EMBED).double()
            read = torch.cat([read, query])
            expected, weights = attention(read, key[:, rows], key[:, rows], pads[rows], static_kv=True)
            sources, source_pads = key[:, rows], pads[rows]
            if beam is not None:
                sources, source_pads = key[:, ::2], pads[::2]
                set_source_rows(state, (rows // 2).view(-1, 1 if len(rows) % beam else beam))
            elif not with_grad:
                sources, source_pads = key, pads  # which are read in the first step alone
            out, step_weights = attention(query, sources, sources, source_pads, incremental_state=state, static_kv=True)
            torch.testing.assert_close(out, expected[-steps_of:], rtol=0, atol=1e-12)
            torch.testing.assert_close(step_weights, weights[:, -steps_of:], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("beam", [None, 2])
def test_a_window_of_the_source_has_positions_of_the_whole_source(side, beam):
    """Sources of 30, 20 and 11 tokens."""
    size, attention = 6, _cross(window=6, lengths=(1, 1))
    attention.q_proj.weight[:, 0] = attention.k_proj.weight[:, 0] = 1
    attention.q_proj.bias.copy_(torch.tensor([4.0, 0, 0, 0] * HEADS))  # in the turned pair: near positions weigh more
    attention.k_proj.bias.copy_(torch.tensor([4.0, 0, 0, 0] * HEADS))
    key = torch.randn(30, 3, SOURCE_DIM).double()
    pads = torch.arange(30) < torch.tensor([0, 10, 19])[:, None]
    pads = pads if side == "left" else pads.flip(1)
    rows, state = torch.arange(6) // 2, {}
    places, first = torch.zeros(6).double(), (~pads).int().argmax(1)
    for step in range(25):
        query = torch.randn(1, 6, EMBED).double()
        handed = key[:, rows], pads[rows]
        if beam is not None:
            set_source_rows(state, rows.view(-1, beam))
            handed = key, pads
        out, _ = attention(query, handed[0], None, handed[1], incremental_state=state, static_kv=True)
        source = next(x["source"] for x in state.values() if "source" in x)
        for row in range(6):
            tokens = key[~pads[rows[row]], rows[row]]
            start = max(0, min(int(places[row]) - size // 2, len(tokens) - size))
            near = range(start, start + size)
            expected = _attend(
                attention, query[:, row], tokens, lambda _, at=step: _cross_angles(at), _cross_angles,
                lambda _, s, seen=near: s in seen,
            )  # fmt: skip
            torch.testing.assert_close(out[0, row], expected[0], rtol=0, atol=1e-10)
        places = source.place - first[rows]
    assert (places > size).any()


def test_half_precision_is_close():
    for attention in (_self("encoder", **ROTARY, conv_size=4), _cross(lengths=(863, 1000))):
        width = EMBED if isinstance(attention, SoftmaxSelfAttention) else SOURCE_DIM
        query, key = torch.randn(5, 2, EMBED).double(), torch.randn(300, 2, width).double()
        query = key if isinstance(attention, SoftmaxSelfAttention) else query
        expected, _ = attention(query, key, key, static_kv=width == SOURCE_DIM)
        for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
            found, _ = attention.to(dtype)(query.to(dtype), key.to(dtype), key.to(dtype), static_kv=width == SOURCE_DIM)
            assert found.dtype == dtype
            assert (found.double() - expected).abs().max() < limit * expected.abs().max()
            attention.double()

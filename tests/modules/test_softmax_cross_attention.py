"""Softmax cross-attention that shares its source computes what fairseq's attention computes."""

import copy

import pytest
import torch
from fairseq.modules import MultiheadAttention

from fwp_fairseq.modules.incremental_state import set_source_rows
from fwp_fairseq.modules.softmax_cross_attention import SoftmaxCrossAttention

EMBED, HEADS, SOURCE_DIM = 16, 4, 12


def _pair() -> tuple[SoftmaxCrossAttention, MultiheadAttention]:
    torch.manual_seed(1)
    options = {"kdim": SOURCE_DIM, "vdim": SOURCE_DIM, "encoder_decoder_attention": True}
    ours = SoftmaxCrossAttention(EMBED, HEADS, **options).eval()
    stock = MultiheadAttention(EMBED, HEADS, **options).eval()
    stock.load_state_dict(ours.state_dict())
    return ours, stock


def _sources(sentences: int, beam: int, length: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources as beam search repeats them, (S, R, C), and their pads (R, S): sentence i has i pads on the left."""
    key = torch.randn(length, sentences, SOURCE_DIM)
    pads = torch.arange(length) < torch.arange(sentences)[:, None]
    return key.repeat_interleave(beam, 1), pads.repeat_interleave(beam, 0)


# What becomes of the rows after each step, for 3 sentences with a beam of 2: hypotheses change places, a sentence ends,
# two sentences change places, rows of a source are torn apart, one source has more rows than another.
ORDERS = {
    "swapped": [[1, 0, 2, 2, 5, 4], [0, 0, 3, 2, 5, 5]],
    "ended": [[1, 0, 4, 4], [1, 1]],
    "moved": [[4, 5, 1, 0, 2, 2], [3, 2, 1, 0, 5, 4]],
    "torn": [[0, 2, 4, 1, 3, 5], [0, 1, 2, 3, 4, 5]],
    "uneven": [[0, 1, 1, 2, 5], [4, 0, 0]],
}
# Whether rows are told their sources, and in lines of how many: those of a line keep together until one of them ends.
TOLD = [(orders, None) for orders in ORDERS] + [(orders, 1) for orders in ORDERS]
TOLD += [(orders, 2) for orders in ("swapped", "ended", "uneven")]


def told(state: dict, key: torch.Tensor, pads: torch.Tensor | None, beam: int | None) -> tuple:
    """Returns what an encoder's output has of rows in pairs: each source once, if their sources are told."""
    if beam is None:
        return key, pads
    set_source_rows(state, torch.arange(3).repeat_interleave(2).view(-1, beam))
    return key[:, ::2], None if pads is None else pads[::2]


@torch.no_grad()
@pytest.mark.parametrize("name, beam", TOLD)
@pytest.mark.parametrize("has_pads", [True, False])
@pytest.mark.parametrize("steps_of", [1, 3])
def test_decoding_equals_fairseqs(name, beam, has_pads, steps_of):
    ours, stock = _pair()
    key, pads = _sources(3, 2)
    pads = pads if has_pads else None
    ours_state, rows = {}, torch.arange(6)
    sources, source_pads = told(ours_state, key, pads, beam)
    for order in [None, *ORDERS[name]]:
        if order is not None:
            order = torch.tensor(order)
            ours.reorder_incremental_state(ours_state, order)
            rows = rows[order]
        query = torch.randn(steps_of, len(rows), EMBED)
        # Without a state fairseq reads the sources that it is given, here those of the rows that are left.
        given = key[:, rows], key[:, rows], None if pads is None else pads[rows]
        expected = stock(query, *given, static_kv=True, need_head_weights=True)
        actual = ours(
            query, sources, sources, source_pads, incremental_state=ours_state, static_kv=True, need_head_weights=True
        )
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_source_is_kept_once_and_goes_with_its_last_row():
    ours, _ = _pair()
    key, pads = _sources(3, 4)
    state = {}
    set_source_rows(state, torch.tensor([[0] * 4, [1] * 4, [2] * 4]))
    ours(torch.randn(1, 12, EMBED), key[:, ::4], None, pads[::4], incremental_state=state, static_kv=True)
    source = next(of["source"] for of in state.values() if "source" in of)
    assert source.keys.shape == (3, HEADS, EMBED // HEADS, 7) and source.beam == 4
    last = source.keys[2].clone()
    ours.reorder_incremental_state(state, torch.tensor([8, 9, 8, 11]))
    assert source.keys.shape[0] == source.values.shape[0] == source.pads.shape[0] == 1
    assert torch.equal(source.keys[0], last)


def test_a_search_does_not_become_differentiable_half_way():
    ours, _ = _pair()
    key, pads = _sources(1, 2)
    query, state = torch.randn(1, 2, EMBED), {}
    with torch.no_grad():
        ours(query, key, key, pads, incremental_state=state, static_kv=True)
    with pytest.raises(RuntimeError, match="no_grad"):
        ours(query, key, key, pads, incremental_state=state, static_kv=True)


def test_copies_and_options_that_change_keys():
    ours, _ = _pair()
    trained = copy.deepcopy(ours).train()
    assert trained.state_dict().keys() == ours.state_dict().keys()
    torch.manual_seed(2)
    zero = SoftmaxCrossAttention(
        EMBED, HEADS, kdim=SOURCE_DIM, vdim=SOURCE_DIM, encoder_decoder_attention=True, add_zero_attn=True
    )
    key, pads = _sources(1, 2)
    with torch.no_grad():
        for module, mask in ((zero.eval(), None), (trained, None), (ours, torch.zeros(1, 7))):
            module(torch.randn(1, 2, EMBED), key, key, pads, state := {}, static_kv=True, attn_mask=mask)
            assert "prev_key" in next(iter(state.values()))

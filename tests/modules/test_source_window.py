"""Softmax cross-attention with a window reads what its definition says, whatever becomes of the hypotheses."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment

from fwp_fairseq.modules.incremental_state import set_source_rows
from fwp_fairseq.modules.softmax_cross_attention import set_source_window_
from tests.models.helpers import WORDS, sources
from tests.models.test_shared_source import _check, _models, _translations
from tests.modules.test_softmax_cross_attention import EMBED, HEADS, ORDERS, SOURCE_DIM, TOLD, _pair

SIZE, LENGTH = 4, 23


def _defined(attention, query, key, pads, places) -> tuple[torch.Tensor, torch.Tensor]:
    """What each row reads with a query (R, C) of its own source, (S, R, C), and where it is after that."""
    out = []
    for row, place in enumerate(places.tolist()):
        tokens = (~pads[row]).nonzero()[:, 0].tolist()
        start = max(min(int(place) - SIZE // 2, tokens[-1] + 1 - SIZE), tokens[0])
        near = [j for j in tokens if start <= j < start + SIZE]
        q = (attention.q_proj(query[row]) * attention.scaling).view(HEADS, -1)
        k, v = (proj(key[near, row]).view(len(near), HEADS, -1) for proj in (attention.k_proj, attention.v_proj))
        weights = torch.einsum("hd,jhd->hj", q, k).softmax(-1)
        out.append(attention.out_proj(torch.einsum("hj,jhd->hd", weights, v).flatten()))
        places[row] = max(place, float(weights.mean(0) @ torch.tensor(near, dtype=weights.dtype) + 1))
    return torch.stack(out), places


def _source(state: dict):
    return next(of["source"] for of in state.values() if "source" in of)


@torch.no_grad()
@pytest.mark.parametrize("name, beam", TOLD)
@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_steps_read_what_is_defined(name, beam, side):
    orders, attention = ORDERS[name], _pair()[0].double()
    attention.source_window = SIZE
    # The first number of a query says how much later positions are preferred, so that places move on, and later stay.
    attention.q_proj.weight[:, 0] = attention.k_proj.weight[:, 0] = 1
    key = torch.randn(LENGTH, 3, SOURCE_DIM).double()
    key[..., 0] = 0.4 * torch.arange(LENGTH)[:, None]
    key = key.repeat_interleave(2, 1)
    # Of 23, 14 and 3 tokens.
    pads = torch.arange(LENGTH) < torch.tensor([0, 9, 20])[:, None]
    pads = {"left": pads, "right": pads.flip(1), "none": torch.zeros_like(pads)}[side].repeat_interleave(2, 0)
    rows, state, went = torch.arange(6), {}, []
    places = (~pads).int().argmax(1).double()
    for step in range(LENGTH + 4):
        if step and step % 3 == 0 and step // 3 <= len(orders):
            order = torch.tensor(orders[step // 3 - 1])
            attention.reorder_incremental_state(state, order)
            rows, places = rows[order], places[order]
        # Now and then two positions at once.
        query = torch.randn(1 + step % 2, len(rows), EMBED).double()
        query[:, :, 0] += 3 if step < 12 else -6
        expected = torch.empty_like(query)
        for position, one in enumerate(query):
            before = places.clone()
            expected[position], places = _defined(attention, one, key[:, rows], pads[rows], places)
            went.append(float((places - before)[0]))
        given = None if side == "none" else pads[rows]
        # The sources of this step's rows, or each source once, and which of them the rows read.
        source = key[:, rows]
        if beam is not None:
            source, given = key[:, ::2], None if side == "none" else pads[::2]
            set_source_rows(state, (rows // 2).view(-1, 1 if len(rows) % beam else beam))
        out, weights = attention(query, source, None, given, incremental_state=state, static_kv=True)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        assert weights is None
        torch.testing.assert_close(_source(state).place, places, rtol=0, atol=1e-4)
    assert min(went) == 0 < max(went)


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False])
def test_sources_up_to_the_window_are_translated_as_without(left):
    """The sources have 7, 4, 1 and 6 tokens."""
    for size, whole in ((7, [0, 1, 2, 3]), (6, [1, 2, 3]), (4, [1, 2])):
        (model,), (stock,) = _models()
        set_source_window_(model, size)
        found, expected = _translations([model], left), _translations([stock], left)
        _check([found[i] for i in whole], [expected[i] for i in whole])


@torch.no_grad()
@pytest.mark.parametrize("prepared", [True, False])
def test_alignments_are_of_the_whole_source(prepared):
    """Prepared for alignments or not, the window gives none: fairseq computes them in one more pass."""
    (model,), _ = _models()
    set_source_window_(model, 3)
    if prepared:
        model.make_generation_fast_(need_attn=True)
    src, lengths = sources([6, 4])
    sample = {"net_input": {"src_tokens": src, "src_lengths": lengths}, "target": None}
    generator = SequenceGeneratorWithAlignment([model], WORDS, beam_size=2, max_len_b=7, print_alignment="hard")
    found = [hypothesis["alignment"] for of in generator.generate([model], sample) for hypothesis in of]
    assert len(found) == 4 and all(len(alignment) for alignment in found)

"""Translations with softmax cross-attention that shares its source are those of fairseq's own Transformer."""

import pytest
import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.token_generation_constraints import pack_constraints

from fwp_fairseq.modules import CrossAttention
from tests.models.helpers import WORDS, build, sources
from tests.models.test_stock import stock_model


def _models(count: int = 1) -> tuple[list, list]:
    ours = [build(seed, fwp_feature_map="softmax").float().eval() for seed in range(count)]
    theirs = [stock_model(seed).float().eval() for seed in range(count)]
    for model, stock in zip(ours, theirs, strict=True):
        stock.load_state_dict({name: x for name, x in model.state_dict().items() if "fwp" not in name}, strict=False)
        assert any(isinstance(module, CrossAttention) for module in model.modules())
    return ours, theirs


def _translations(models: list, left: bool, beam: int = 3, batch: dict | None = None, **options) -> list:
    src, lengths = sources([7, 4, 1, 6], left=left)
    sample = {"net_input": {"src_tokens": src, "src_lengths": lengths}}
    generator = SequenceGenerator(models, WORDS, beam_size=beam, max_len_b=12, **options)
    return generator.generate(models, sample, **(batch or {}))


def _check(ours: list, theirs: list) -> None:
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x["tokens"], y["tokens"])
            torch.testing.assert_close(x["positional_scores"], y["positional_scores"], rtol=0, atol=1e-6)
            if isinstance(y["alignment"], torch.Tensor):
                assert torch.equal(x["alignment"], y["alignment"])


CASES = {
    "beam": {},
    "one hypothesis": {"beam": 1},
    "prefixes": {"batch": {"prefix_tokens": torch.tensor([[5, 6], [7, 1], [8, 9], [5, 5]])}},
    "constraints": {
        "batch": {
            "constraints": pack_constraints([[torch.tensor([5])], [torch.tensor([6, 7])], [], [torch.tensor([8])]])
        },
        "search_strategy": search.LexicallyConstrainedBeamSearch(WORDS, "ordered"),
    },
    "diverse groups": {"beam": 4, "search_strategy": search.DiverseBeamSearch(WORDS, 2, 0.5)},
    "long": {"min_len": 11},
}


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_translations_are_those_of_fairseq(case, models, left):
    ours, theirs = _models(models)
    _check(_translations(ours, left, **CASES[case]), _translations(theirs, left, **CASES[case]))


@torch.no_grad()
@pytest.mark.parametrize("alignment", ["hard", "soft"])
def test_alignments_are_those_of_fairseq(alignment):
    (model,), (stock,) = _models()
    found = []
    src, lengths = sources([7, 4, 1, 6])
    target = torch.full((4, 3), 5)
    net_input = {"src_tokens": src, "src_lengths": lengths, "prev_output_tokens": target}
    for one in (model, stock):
        generator = SequenceGeneratorWithAlignment([one], WORDS, beam_size=2, max_len_b=8, print_alignment=alignment)
        found.append(generator.generate([one], {"target": target, "net_input": net_input}))
    _check(*found)


@torch.no_grad()
def test_no_step_gives_weights_unless_alignments_are_asked_for():
    models, (stock, _) = _models(2)
    models[1].load_state_dict(models[0].state_dict())
    for model, asked in zip(models, (True, False), strict=True):
        model.make_generation_fast_(need_attn=asked)
        found = _translations([model], left=True)
        _check(found, _translations([stock], left=True))
        assert all(bool(hypothesis["attention"].numel()) == asked for of in found for hypothesis in of)


@torch.no_grad()
def test_sources_are_copied_only_if_a_row_gets_another():
    (model,), (stock,) = _models()
    src, lengths = sources([7, 4, 6])
    found, expected = (one.encoder(src, lengths) for one in (model, stock))
    # Two hypotheses of each; they change places; the second sentence ends; sentences change places.
    orders = [0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [1, 0, 4, 5], [1, 1, 2, 3], [2, 3, 1, 0]
    for order, copies in zip(map(torch.tensor, orders), (True, False, True, False, True), strict=True):
        before, found = found, model.encoder.reorder_encoder_out(found, order)
        expected = stock.encoder.reorder_encoder_out(expected, order)
        assert (found is not before) == copies
        for name, tensors in expected.items():
            assert all(map(torch.equal, found[name], tensors)), name

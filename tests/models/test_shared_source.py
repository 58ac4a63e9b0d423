"""Translations with softmax cross-attention that shares its source are those of fairseq's own Transformer."""

import pytest
import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.token_generation_constraints import pack_constraints

from fwp_fairseq.kinds import KINDS
from fwp_fairseq.memories.window_cache import WindowCache
from fwp_fairseq.modules import FastWeightSiteAttention, SoftmaxCrossAttention
from fwp_fairseq.modules.incremental_state import load
from fwp_fairseq.ops import Cache
from tests.models.helpers import WORDS, build, sources
from tests.models.test_stock import stock_model
from tests.reads import no_reads


def _models(count: int = 1) -> tuple[list, list]:
    ours = [build(seed, fwp_feature_map="softmax").float().eval() for seed in range(count)]
    theirs = [stock_model(seed).float().eval() for seed in range(count)]
    for model, stock in zip(ours, theirs, strict=True):
        stock.load_state_dict({name: x for name, x in model.state_dict().items() if "fwp" not in name}, strict=False)
        assert any(isinstance(module, SoftmaxCrossAttention) for module in model.modules())
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
            torch.testing.assert_close(x["positional_scores"], y["positional_scores"], rtol=1e-6, atol=1e-6)
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


def _reads(model, encoded: dict, prefix: torch.Tensor) -> torch.Tensor:
    return model.decoder(prefix, encoder_out=encoded)[0]


@torch.no_grad()
@pytest.mark.parametrize("beam", [1, 2])
def test_sources_are_reordered_without_a_copy(beam):
    (model,), (stock,) = _models()
    model.set_beam_size(beam)
    src, lengths = sources([7, 4, 6])
    found, expected = (one.encoder(src, lengths) for one in (model, stock))
    whole = found["encoder_out"][0]
    # Two hypotheses of each; they change places; the second sentence ends; a hypothesis ends alone; another order.
    for order in ([0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [1, 0, 4, 5], [0, 2, 3], [2, 0, 1, 1]):
        order = torch.tensor(order)
        found, expected = (one.encoder.reorder_encoder_out(x, order) for one, x in ((model, found), (stock, expected)))
        assert found["encoder_out"][0] is whole
        prefix = torch.full((len(order), 3), 5)
        torch.testing.assert_close(_reads(model, found, prefix), _reads(stock, expected, prefix), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("order", [[0, 2, 1, 3], [2, 3, 0, 1]], ids=["torn", "moved"])
def test_a_search_that_breaks_its_promise_is_refused(order):
    (model,), _ = _models()
    model.set_beam_size(2)
    encoded = model.encoder.reorder_encoder_out(model.encoder(*sources([5, 3])), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(RuntimeError, match="the 2 hypotheses of each sentence next to each other"):
        model.encoder.reorder_encoder_out(encoded, torch.tensor(order))


@torch.no_grad()
def test_searches_of_several_beams_with_one_model():
    """fairseq does not tell a model of a beam of 1, so the model still knows the beam before."""
    (model,), (stock,) = _models()
    for beam in (3, 1, 2):
        _check(*(_translations([one], True, beam=beam) for one in (model, stock)))


MODELS = {
    "softmax": {"fwp_feature_map": "softmax"},
    "delta": {"fwp_update_rule": "delta"},
    "hybrid": {"fwp_update_rule": "delta", "fwp_cross": "softmax", "fwp_normalizer": "sum"},
    "rotary": {"fwp_feature_map": "softmax", "fwp_positions": "rotary"},
    "convolutions": {"fwp_update_rule": "delta", "fwp_decoder": "conv-size=4"},
    "gated": {"fwp_update_rule": "gated_delta", "fwp_feature_map": "elu", "fwp_normalizer": "l2"},
    "source window": {"fwp_feature_map": "softmax", "fwp_cross": "softmax,source-window=6"},
    "window of 2": {"fwp_feature_map": "softmax", "fwp_decoder": "hedgehog-window,window=2"},
    **{
        f"decoder {kind}": {"fwp_feature_map": "softmax", "fwp_decoder": kind}
        for kind, (_, options) in KINDS.items()
        if options.get("feature_map") != "softmax"
    },
}


@pytest.mark.parametrize("reads", ["tolist", "nonzero", "unique", "item", "__bool__", "__int__", "cpu", "masked"])
def test_reads_are_noticed(reads):
    x = torch.ones(1)
    with pytest.raises(AssertionError, match="reads a value"), no_reads():
        x[x > 0] if reads == "masked" else getattr(x, reads)()


@torch.no_grad()
def check_steps(model, device: str) -> None:
    """Steps and reorderings of a beam of 2: hypotheses change places, then the second sentence ends, the longest."""
    model.set_beam_size(2)
    state, prefix = {}, torch.full((6, 1), WORDS.eos(), device=device)
    orders = [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5], [1, 0, 2, 2, 5, 4], [1, 0, 4, 5]
    first, *orders = (torch.tensor(order).to(device) for order in orders)
    encoded = model.encoder(*(x.to(device) for x in sources([6, 7, 4])))
    with no_reads():
        encoded = model.encoder.reorder_encoder_out(encoded, first)
        for order in orders:
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoded = model.encoder.reorder_encoder_out(encoded, order)
            prefix = prefix[order]
            out, _ = model.decoder(prefix, encoder_out=encoded, incremental_state=state)
            prefix = torch.cat([prefix, torch.full((len(order), 1), 7, device=device)], 1)
    for module in model.decoder.modules():
        held = load(module, state).get("held") if isinstance(module, FastWeightSiteAttention) else None
        if held is not None and module.memory.decodes_lazily(torch.empty(1, 1, 1, module.head_dim, device=device)):
            assert isinstance(held, Cache | WindowCache)
    whole, _ = model.decoder(prefix[:, :-1], encoder_out=encoded)
    torch.testing.assert_close(out, whole[:, -1:], rtol=0, atol=1e-6 if out.dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)
def test_no_step_reads_a_value_back_to_the_host(flags):
    """Steps and reorderings of a beam of 2: hypotheses change places, then the second sentence ends."""
    check_steps(build(**flags), "cpu")

"""Tests the attention that the experiment on documents tries: values, gradients, and decoding step by step."""

import argparse
import importlib
import math
import re

import pytest
import torch
from fairseq import utils

from fwp_fairseq.config import FastWeightConfig
from fwp_fairseq.ops import gated_delta_rule
from fwp_fairseq.ops.call import EPS, Call, FastWeights
from tests.models.helpers import build, loss, prefixes, sources
from tests.models.test_decoding import check_decoding
from tests.pages import ROOT
from tests.tolerances import assert_close

utils.import_user_module(argparse.Namespace(user_dir=str(ROOT / "scripts/experiments/documents/fwp_candidates")))
kda = importlib.import_module("fwp_candidates.kda")
candidates = importlib.import_module("fwp_candidates.model")

HYBRID = {
    "fwp_encoder": "gated-delta,passes=both-ways,conv-size=4", "fwp_decoder": "gated-delta,conv-size=4",
    "fwp_cross": "softmax-rotary",
}  # fmt: skip
SOFTMAX = dict.fromkeys(("fwp_encoder", "fwp_decoder"), "softmax-rotary,conv-size=4") | {"fwp_cross": "softmax-rotary"}
SOFTMAX_ONLY = {"fwp_feature_map": "softmax"}
MODELS = {
    "kda": ("kda", HYBRID),
    "output-gate": ("output-gate", HYBRID),
    "output-gate, softmax": ("output-gate", SOFTMAX),
    "clock": ("clock", HYBRID),
    "clock, softmax": ("clock", SOFTMAX),
    "all": ("kda,output-gate,clock", HYBRID),
}
OWN = re.compile(r"\.(gate|clock|decay)\.")  # the parameters of candidates


def _inputs(length: int, alpha: torch.Tensor, dtype=torch.float64):
    """Returns q, k, v, beta and log alpha of 2 rows, 4 heads, d_key = 6 and d_value = 5, and a state."""
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, length, 4, width, generator=draw, dtype=dtype) for width in (6, 6, 5))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    beta = torch.rand(2, length, 4, generator=draw, dtype=dtype)
    log_alpha = alpha[torch.randint(len(alpha), (2, length, 4, 6), generator=draw)].to(dtype).log()
    W = torch.randn(2, 4, 6, 5, generator=draw, dtype=dtype)
    return [x.requires_grad_() for x in (q, k, v, beta, log_alpha, W)]


def _run(q, k, v, beta, log_alpha, W, pads, both_ways=False):
    state = None if both_ways else FastWeights(W, None)
    call = Call(
        "gated_delta", q, k, v, beta, log_alpha.exp(), None, True, pads, False, False, EPS, state, not both_ways,
        both_ways,
    )  # fmt: skip
    return kda.run(call)


def _loop(q, k, v, beta, log_alpha, W, pads):
    """Computes outputs and the last state by the equation, one position after another."""
    outputs = []
    for t in range(q.shape[1]):
        kept = log_alpha[:, t, ..., None].exp() * W
        old = torch.einsum("bhi,bhij->bhj", k[:, t], kept)
        new = kept + torch.einsum("bhi,bhj->bhij", k[:, t], beta[:, t, :, None] * (v[:, t] - old))
        W = torch.where(pads[:, t, None, None, None], W, new)
        outputs.append(torch.einsum("bhi,bhij->bhj", q[:, t], W))
    return torch.stack(outputs, 1), W


ALPHAS = {"weak": [0.9, 0.99, 1.0], "strong": [1e-30, 1e-3, 0.5, 1.0]}


@pytest.mark.parametrize("alphas", ALPHAS)
@pytest.mark.parametrize("length", [1, 15, 16, 40])
def test_kda_is_its_equation(length, alphas):
    inputs = _inputs(length, torch.tensor(ALPHAS[alphas], dtype=torch.float64))
    pads = torch.arange(length) < torch.tensor([0, length // 3])[:, None]
    (out, state), (expected, W) = _run(*inputs, pads), _loop(*inputs, pads)
    g = ~pads[..., None, None] * torch.arange(5)
    assert_close(out * g, expected * g, "operator")
    assert_close(state.W, W, "operator")
    totals = (out * g).sum() + state.W.sum(), (expected * g).sum() + W.sum()
    ours, theirs = (torch.autograd.grad(total, inputs) for total in totals)
    for actual, right in zip(ours, theirs, strict=True):
        assert_close(actual, right, "model")


def test_kda_in_float32_does_not_overflow_where_content_is_forgotten_at_once():
    inputs = _inputs(64, torch.tensor([0.0, 1e-38, 1e-20, 1.0]), torch.float32)
    (out, state), (expected, W) = (f(*inputs, torch.zeros(2, 64, dtype=torch.bool)) for f in (_run, _loop))
    assert_close(out, expected, "float32")
    assert_close(state.W, W, "float32")


@pytest.mark.parametrize("both_ways", [False, True])
def test_kda_with_one_decay_for_all_features_is_the_gated_delta_rule(both_ways):
    q, k, v, beta, log_alpha, W = _inputs(37, torch.tensor([0.5, 0.9, 1.0], dtype=torch.float64))
    log_alpha = log_alpha[..., :1]
    pads = torch.arange(37) >= torch.tensor([37, 30])[:, None]
    out, _ = _run(q, k, v, beta, log_alpha.expand(-1, -1, -1, 6), W, pads, both_ways)
    expected, _ = gated_delta_rule(
        q, k, v, beta, log_alpha[..., 0].exp(), key_padding_mask=pads, normalize_features=False, backend="reference",
        both_ways=both_ways, initial_state=None if both_ways else FastWeights(W, None),
    )  # fmt: skip
    visible = ~pads[..., None, None]
    assert_close(out * visible, expected * visible, "operator")


def _model(name: str, seed: int = 0):
    """With candidates that differ from how they start."""
    chosen, sites = MODELS[name]
    flags = vars(FastWeightConfig()) | sites | {"candidates": chosen}
    model = build(seed, cls=candidates.CandidateTransformer, **flags)
    for part, parameter in model.named_parameters():
        if OWN.search(part):
            torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_the_whole_pass(name):
    check_decoding(_model(name), left="softmax" in name)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_a_candidate_learns(name):
    model = _model(name).train()
    loss(model).backward()
    own = [parameter for part, parameter in model.named_parameters() if OWN.search(part)]
    assert own and all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in own)


@pytest.mark.parametrize("name", ["output-gate", "output-gate, softmax", "clock", "clock, softmax"])
@torch.no_grad()
def test_gate_and_clock_start_as_the_model_without_them(name):
    _, sites = MODELS[name]
    src, lengths = sources([7, 5, 3])
    out, expected = (
        build(cls=candidates.CandidateTransformer, **vars(FastWeightConfig()) | sites | {"candidates": chosen})(
            src, lengths, prefixes(3, 6)
        )[0]
        for chosen in (MODELS[name][0], "")
    )
    assert_close(out, expected, "rounding")
    assert (_model(name)(src, lengths, prefixes(3, 6))[0] - expected).abs().max() > 1e-3


@torch.no_grad()
def test_a_clock_sums_its_steps_over_tokens_and_calls():
    attention = _model("clock").decoder.layers[0].encoder_attn
    attention.positions.lengths.copy_(torch.tensor([3, 4]))
    torch.nn.init.zeros_(attention.clock.bias)
    torch.nn.init.zeros_(attention.clock.weight)[0, 0] = 1
    query = torch.zeros(3, 2, 12, dtype=torch.float64)
    query[..., 0] = torch.tensor([[1.0, 0.5], [2.0, 1.0], [0.25, 4.0]]).log()
    attention.target_pads = torch.tensor([[False, False, False], [True, False, False]])
    angles, saved = attention._query_angles(query, {})
    more, _ = attention._query_angles(query[1:2], saved)
    # Positions count from 0, the shortest wavelength is 16, and the ratio of lengths is 3/4.
    expected = torch.tensor([[0.0, -1.0], [2.0, 0.0], [2.25, 4.0], [4.25, 5.0]]) * 0.75 * 2 * math.pi / 16
    assert_close(torch.cat([angles, more])[:, :, 0, 0], expected, "float32")


@pytest.mark.parametrize("name", ["kda", "output-gate", "clock"])
def test_attention_that_a_candidate_does_not_fit_is_refused(name):
    with pytest.raises(TypeError, match=f"{name}: (self|cross)-attention is .*, expected"):
        build(cls=candidates.CandidateTransformer, **vars(FastWeightConfig()) | SOFTMAX_ONLY | {"candidates": name})


def test_unknown_candidates_are_refused():
    with pytest.raises(ValueError, match="--candidates gate: expected some of kda, output-gate, clock"):
        build(cls=candidates.CandidateTransformer, **vars(FastWeightConfig()) | HYBRID | {"candidates": "gate"})

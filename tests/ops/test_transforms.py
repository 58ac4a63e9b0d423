"""Forward-mode derivatives and torch.func: auto serves them by a backend that can, native refuses, none is lost."""

import pytest
import torch
from torch.autograd import forward_ad

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map
from tests.ops.cases import OPERATORS, RULES, make
from tests.ops.test_decoding import Stream
from tests.tolerances import assert_close


def function_of(case, backend):
    """(out, W, z) as a function of q, k, v, strengths, W0 and z0, and the place to differentiate it at."""
    places = (*case.tensors.values(), *(x for x in case.state if x is not None))

    def function(*tensors):
        given, state = tensors[: len(case.tensors)], tensors[len(case.tensors) :]
        out, final = OPERATORS[case.rule](
            *given, feature_map=case.phi, key_padding_mask=case.mask, initial_state=(*state, None)[:2], backend=backend,
            return_state=True, **case.options,
        )  # fmt: skip
        return (out, *final) if case.options["normalize_output"] else (out, final.W)

    return function, places


def loss(function):
    return lambda *tensors: sum(x.square().sum() for x in function(*tensors))


def with_duals(function):
    def tangents(places, directions):
        with forward_ad.dual_level():
            results = function(*map(forward_ad.make_dual, places, directions))
            return [forward_ad.unpack_dual(x).tangent for x in results]

    return tangents


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("normalizer", ["sum", "both"])
@pytest.mark.parametrize("rule", RULES)
def test_every_derivative_that_torch_can_ask_for(rule, normalizer, causal):
    case = make(rule, "dpfp-1", normalizer, causal=causal, length=6, mask="holes", state=True, batch=2, heads=1)
    answers = []
    for backend in ("reference", "auto"):
        function, places = function_of(case, backend)
        directions = [x.flip(1).cos() for x in places]
        scalar, everything = loss(function), tuple(range(len(places)))
        answers.append(
            [
                *with_duals(function)(places, directions),
                *torch.func.jvp(function, places, tuple(directions))[1],
                *torch.func.jacfwd(scalar, everything)(*places),
                *torch.func.jacrev(function, 0)(*places),
                *torch.func.grad(scalar, everything)(*places),
                *torch.vmap(torch.func.grad(scalar, everything))(*(torch.stack([x, 0.9 * x]) for x in places)),
                torch.func.hessian(scalar, 1)(*places),
            ]
        )
    for expected, found in zip(*answers, strict=True):
        assert_close(found, expected, "operator")


@pytest.mark.needs("native")
def test_native_says_which_of_them_it_refuses():
    case = make("delta", state=True)
    function, places = function_of(case, "native")
    for transformed in (
        lambda: torch.func.jvp(function, places, places),
        lambda: torch.func.grad(loss(function))(*places),
        lambda: torch.vmap(function)(*(x[None] for x in places)),
    ):
        with pytest.raises(NotImplementedError, match=r"backend='native' cannot serve delta_rule: .* torch\.func"):
            transformed()
    with pytest.raises(NotImplementedError, match=r"cannot serve delta_rule: .* no forward-mode"):
        with_duals(function)(places, places)


@pytest.mark.needs("native")
def test_tangents_that_come_with_the_gradient_are_not_lost():
    case = make("sum")
    x = [tensor.requires_grad_() for tensor in case.tensors.values()]
    out, _ = OPERATORS["sum"](*x, backend="native")
    gradient = torch.ones_like(out)
    with forward_ad.dual_level():
        plain = torch.autograd.grad(out, x, gradient, retain_graph=True)
        with pytest.raises(NotImplementedError, match="fast_weights_backward has no forward-mode derivative"):
            torch.autograd.grad(out, x, forward_ad.make_dual(gradient, gradient))
    assert all(a.isfinite().all() for a in plain)


def test_the_projection_of_favor_has_forward_derivatives():
    """What is differentiated need not be an input of the operator."""
    phi = build_feature_map("favor", 3, m=4).double().eval()
    x, projection = torch.randn(3, 2, 5, 1, 3, dtype=torch.float64), phi.projection.double()

    def tangent(backend):
        with forward_ad.dual_level():
            phi.projection = forward_ad.make_dual(projection, projection.cos())
            return forward_ad.unpack_dual(ops.sum_rule(*x, feature_map=phi, backend=backend)[0]).tangent

    assert_close(tangent("auto"), tangent("reference"), "operator")


@pytest.mark.parametrize("rule", RULES)
def test_decoding_step_by_step_has_forward_derivatives(rule):
    decoding = ops.Decoding(rule, build_feature_map("dpfp", 3), True, True)
    stream, rows = Stream(decoding, 2 * 40), torch.arange(80).view(2, 40)

    def step_by_step(*tensors):
        cache, outputs = None, []
        for t in range(40):
            out, cache = decoding.step(cache, *(x[:, t : t + 1] for x in tensors))
            outputs.append(out)
        return (torch.cat(outputs, 1),)

    def at_once(*tensors):
        options = dict(feature_map=decoding.feature_map, normalize_features=True, normalize_output=True)
        return OPERATORS[rule](*tensors, backend="reference", **options)[:1]

    places = stream.inputs(rows)
    for first in (0, 1):  # all of them, and all but the queries
        directions = [x.cos() if number >= first else torch.zeros_like(x) for number, x in enumerate(places)]
        found, expected = (with_duals(function)(places, directions) for function in (step_by_step, at_once))
        assert_close(found[0], expected[0], "operator")


@pytest.mark.needs("native")
def test_native_does_not_decode_what_is_differentiated_forward():
    decoding = ops.Decoding("sum", build_feature_map("dpfp", 3), True, True, backend="native")
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"with the sum rule: .* no forward-mode"):
        decoding.step(None, *torch.rand(3, 2, 1, 2, 3))


@pytest.mark.slow
def test_transforms_inside_of_a_compiled_graph():
    """One graph without a transform (native, where it is built), one with: each is traced with the right backend."""
    x = torch.rand(3, 1, 5, 2, 4, dtype=torch.float64)
    options = dict(feature_map=build_feature_map("dpfp", 4))

    def plain(q, k, v):
        return ops.sum_rule(q, k, v, **options)[0].square().sum()

    torch._dynamo.reset()
    for function in (plain, torch.func.grad(plain), lambda *x: torch.func.jvp(plain, x, x)[1]):
        assert_close(torch.compile(function, fullgraph=True, backend="aot_eager")(*x), function(*x), "rounding")

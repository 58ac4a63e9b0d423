"""Forward-mode derivatives and torch.func: auto serves them by a backend that can, native refuses, none is lost."""

import pytest
import torch
from torch.autograd import forward_ad

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map
from tests.ops.cases import OPERATORS, RULES, make
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
@pytest.mark.parametrize("rule", RULES)
def test_every_derivative_that_torch_can_ask_for(rule, causal):
    case = make(rule, "dpfp-1", "both", causal=causal, length=6, mask="holes", state=True, batch=2, heads=1)
    answers = []
    for backend in ("reference", "auto"):
        function, places = function_of(case, backend)
        directions = [x.flip(1).cos() for x in places]
        scalar, everything = loss(function), tuple(range(len(places)))
        answers.append(
            [
                *with_duals(function)(places, directions),
                *torch.func.jvp(function, places, tuple(directions))[1],
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
    decoding = ops.Decoding("sum", build_feature_map("dpfp", 3), True, True, backend="native")
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"with the sum rule: .* no forward-mode"):
        decoding.serves(torch.rand(2, 1, 2, 3))

"""Gradients of everything that can have one: q, k, v, beta, W0 and z0, through the output and through the state."""

import pytest
import torch

from fwp_fairseq.ops import GATES
from fwp_fairseq.ops.call import CORRECTING
from tests.ops.cases import NORMALIZERS, RULES, SMALL, make
from tests.pairs import covering
from tests.requirements import TESTED, serves
from tests.tolerances import TOLERANCES, error

OTHERS = [name for name in TESTED if name != "reference"]


def agree(case, backends=OTHERS) -> None:
    """The other backends with the reference: values and gradients."""
    expected = case.results("reference")
    for backend in backends:
        if serves(backend, case.rule):
            found = case.results(backend)
            assert found.keys() == expected.keys()
            for name, x in expected.items():
                assert error(found[name], x) <= TOLERANCES["operator"], (backend, name)


@pytest.mark.parametrize(
    "rule, map_name, normalizer, causal, state",
    covering(RULES, ["elu", "dpfp-1"], NORMALIZERS, [True, False], [True, False]),
)
@pytest.mark.parametrize("backend", TESTED)
def test_gradcheck(backend, rule, map_name, normalizer, causal, state):
    case = make(
        rule, map_name, normalizer, causal=causal, length=3, targets=None if causal else 2, mask="holes",
        state=state, batch=2, heads=1, d_key=2, d_value=2, seed=3,
    )  # fmt: skip
    leaves = case.leaves()

    def values(*given):
        return tuple(x for x in case.of(dict(zip(leaves, given, strict=True))).run(backend) if x is not None)

    assert torch.autograd.gradcheck(values, tuple(leaves.values()), fast_mode=state)


@pytest.mark.parametrize(
    "rule, normalizer, causal, length", covering(RULES, NORMALIZERS, [True, False], [17, 130], strength=3)
)
def test_same_as_differentiating_the_time_loop(rule, normalizer, causal, length):
    for map_name in ("dpfp-2", "favor"):
        case = make(rule, map_name, normalizer, causal=causal, length=length, mask="holes", state=True, **SMALL)
        agree(case, ["chunked"])  # test_native.py has the compiled kernels


@pytest.mark.parametrize(
    "rule, normalizer, causal, length, strengths",
    covering(
        *(["delta", "gated", "gated_delta"], ["sum", "attention", "both"], [True, False], [20, 140]),
        [[0, 1, 1 - 1e-9], [1], [-0.5, 1, 1.5, 0, 2]],
        strength=3,
    ),
)
def test_any_strength_is_the_time_loop(rule, normalizer, causal, length, strengths):
    """At both ends of 0..1, just inside, and outside, where the same equations hold."""
    case = make(rule, "elu", normalizer, causal=causal, length=length, mask="holes", state=True, batch=2, heads=1)
    for name in GATES[rule]:
        tensor = case.tensors[name]
        smaller = 0.1 if rule in CORRECTING and normalizer == "attention" and name == "beta" else 1
        for first, strength in enumerate(strengths):
            tensor[:, first :: len(strengths) + 1] = smaller * strength
        if len(strengths) == 1:
            tensor.fill_(smaller)
    agree(case)

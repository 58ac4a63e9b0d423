"""float32 and half precision: errors, types, and the range that the accumulators must have."""

import pytest
import torch

from tests.ops.cases import NORMALIZERS, OPERATORS, RULES, make
from tests.pairs import covering
from tests.requirements import TESTED
from tests.tolerances import assert_close

HALVES = [torch.float16, torch.bfloat16]


MAPS = ("elu", "dpfp-2", "favor")


@pytest.mark.parametrize("rule, normalizer, map_name", covering(RULES, NORMALIZERS, MAPS))
@pytest.mark.parametrize("backend", TESTED)
def test_float32(backend, rule, normalizer, map_name):
    for causal in (True, False):
        # A larger eps than usual: with 1e-6 a DPFP query that just misses the accumulator has no correct digits.
        case = make(
            rule, map_name, normalizer, causal=causal, length=70, mask="holes", state=True, batch=2, heads=1, eps=1e-2
        ).to(torch.float32)
        for actual, wanted in zip(case.run(backend), case.expected(), strict=True):
            if wanted is not None:
                assert actual.dtype == torch.float32
                assert_close(actual, wanted, "float32")


@pytest.mark.parametrize("rule, map_name, dtype", covering(RULES, MAPS, HALVES), ids=str)
@pytest.mark.parametrize("backend", TESTED)
def test_half_precision_is_float32_inside(backend, rule, map_name, dtype):
    for normalizer in NORMALIZERS:
        case = make(rule, map_name, normalizer, length=70, mask="left", state=True, batch=2, heads=1, eps=1e-2).to(
            dtype
        )
        out, W, z = case.run(backend)
        expected_out, expected_W, expected_z = case.expected()
        assert out.dtype == dtype and W.dtype == torch.float32
        assert_close(out.float(), expected_out, str(dtype).removeprefix("torch."))
        assert_close(W, expected_W, "float32")
        if expected_z is not None:
            assert z.dtype == torch.float32
            assert_close(z, expected_z, "float32")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_half_precision_gradients_come_in_the_type_of_their_input(rule, dtype):
    case = make(rule, length=20).to(dtype)
    leaves = [tensor.requires_grad_() for tensor in case.tensors.values()]
    case.run()[0].float().square().sum().backward()
    assert all(leaf.grad.dtype == dtype and leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("rule", RULES)
def test_autocast_changes_nothing(rule):
    case = make(rule, length=20, state=True).to(torch.float32)
    expected = case.run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = case.run()
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == torch.float32 and torch.equal(actual, wanted)


def test_sums_beyond_the_range_of_half_precision():
    """1000 keys of size 8: z reaches 64000 times 8, more than float16 can hold."""
    x = torch.full((1, 1000, 1, 8), 8.0, dtype=torch.float16)
    out, state = OPERATORS["sum"](x, x, x / 8, causal=False, return_state=True)
    assert_close(out.float(), torch.ones(1, 1000, 1, 8), "float16")
    assert_close(state.z / 8000, torch.ones(1, 1, 8), "float32")


@pytest.mark.parametrize("backend", TESTED)
def test_long_delta_rule_in_float32_does_not_drift(backend):
    case = make("delta", "elu", "sum", length=2000 if backend != "reference" else 300, batch=1, heads=1)
    expected = case.run(backend)
    for actual, wanted in zip(case.to(torch.float32).run(backend)[:2], expected[:2], strict=True):
        assert_close(actual, wanted, "float32")

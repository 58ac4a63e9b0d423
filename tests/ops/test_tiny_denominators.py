"""eps = 0 and features so small that the inverse of a denominator is infinite: every backend divides."""

import pytest
import torch

from fwp_fairseq.ops.decoding import Decoding
from tests.ops.cases import OPERATORS, RULES
from tests.ops.instruction_sets import on_each
from tests.requirements import TESTED

SIZES = [1e-10, 1e-19, 1e-20]


def inputs(rule: str, size: float, length: int):
    q, k = (torch.full((1, length, 1, 4), size) for _ in range(2))
    strengths = [torch.ones(1, length, 1)] * {"sum": 0, "delta": 1, "gated": 1, "gated_delta": 2}[rule]
    return q, k, torch.rand(1, length, 1, 3), *strengths


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", TESTED)
def test_one_position_reads_its_value(backend, rule, size):
    """The paper's quotient is v itself, whatever the size of the features."""
    given = inputs(rule, size, 1)
    options = dict(normalize_features=False, normalize_output=True, eps=0.0, backend=backend)

    def run():
        return OPERATORS[rule](*given, **options)[0]

    for out in (on_each(run) if backend == "native" else {"": run()}).values():
        torch.testing.assert_close(out, given[2], rtol=2e-2 if size < 1e-19 else 1e-5, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.needs("native")
def test_decoding(rule, size):
    given = inputs(rule, size, 1)
    out, _ = Decoding(rule, None, False, True, 0.0).step(None, *given)
    torch.testing.assert_close(out, given[2], rtol=2e-2 if size < 1e-19 else 1e-5, atol=0)

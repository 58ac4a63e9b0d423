"""eps = 0 and features so small that the inverse of a denominator is infinite: every backend divides."""

import pytest
import torch

from fwp_fairseq.ops import STRENGTHS
from fwp_fairseq.ops.decoding import Decoding
from tests.ops.cases import OPERATORS, RULES
from tests.ops.instruction_sets import on_each
from tests.requirements import TESTED


@pytest.mark.parametrize("size", [1e-10, 1e-19, 1e-20])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", [*TESTED, pytest.param("decoding", marks=pytest.mark.needs("native"))])
def test_one_position_reads_its_value(backend, rule, size):
    """The paper's quotient is v itself, whatever the size of the features."""
    q, k = (torch.full((1, 1, 1, 4), size) for _ in range(2))
    given = q, k, torch.rand(1, 1, 1, 3), *(torch.ones(1, 1, 1) for _ in STRENGTHS[rule])

    def run():
        if backend == "decoding":
            return Decoding(rule, None, False, True, 0.0).step(None, *given)[0]
        options = dict(normalize_features=False, normalize_output=True, eps=0.0, backend=backend)
        return OPERATORS[rule](*given, **options)[0]

    for out in ({"": run()} if backend in ("reference", "chunked") else on_each(run)).values():
        torch.testing.assert_close(out, given[2], rtol=2e-2 if size < 1e-19 else 1e-5, atol=0)

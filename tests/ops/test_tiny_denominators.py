"""eps = 0 and features so small that the inverse of a denominator is infinite: every backend divides."""

import pytest
import torch

from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.ops import GATES
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
    given = q, k, torch.rand(1, 1, 1, 3), *(torch.ones(1, 1, 1) for _ in GATES[rule])

    def run():
        if backend == "decoding":
            return Decoding(rule, None, False, True, 0.0).step(None, *given)[0]
        options = dict(normalize_features=False, normalize_output=True, eps=0.0, backend=backend)
        return OPERATORS[rule](*given, **options)[0]

    for out in ({"": run()} if backend in ("reference", "chunked") else on_each(run)).values():
        torch.testing.assert_close(out, given[2], rtol=2e-2 if size < 1e-19 else 1e-5, atol=0)


@pytest.mark.parametrize("name, size", [("relu", 1e-30), ("dpfp", 1e-12), (None, 1e-30), ("relu", 1.0)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", [*TESTED, pytest.param("decoding", marks=pytest.mark.needs("native"))])
def test_features_divided_by_a_tiny_sum(backend, rule, name, size):
    """Whatever the size of the features, they are shares of 1; the loops in float64 say what is read with them."""
    phi = None if name is None else build_feature_map(name, 4)
    q, k = (size * (1 + torch.rand(2, 5, 2, 4) / 10) for _ in range(2))
    given = q, k, torch.randn(2, 5, 2, 3), *(torch.rand(2, 5, 2) for _ in GATES[rule])
    options = dict(feature_map=phi, normalize_features=True, normalize_output=False, eps=0.0)
    expected, _ = OPERATORS[rule](*(x.double() for x in given), backend="reference", **options)
    assert expected.isfinite().all() and expected.abs().max() > 1e-2
    if backend == "decoding":
        out, _ = Decoding(rule, phi, True, False, 0.0).step(None, *given)
    else:
        out, _ = OPERATORS[rule](*given, backend=backend, **options)
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-4)

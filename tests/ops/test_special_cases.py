"""Of which rules the gated delta rule is the general case, and in which sense."""

import pytest
import torch

from tests.ops.cases import NORMALIZERS, OPERATORS, make
from tests.requirements import TESTED
from tests.tolerances import assert_close


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("backend", TESTED)
def test_alpha_1_is_the_delta_rule(backend, normalizer):
    """Exactly, with every normaliser, from any state."""
    for causal in (True, False):
        case = make("gated_delta", "elu", normalizer, causal=causal, length=70, mask="holes", state=True, batch=2)
        case.tensors["alpha"].fill_(1)
        found = case.run(backend)
        del case.tensors["alpha"]
        case.rule = "delta"
        for actual, wanted in zip(found, case.run(backend), strict=True):
            if wanted is not None:
                assert_close(actual, wanted, "rounding")


@pytest.mark.parametrize("backend", TESTED)
def test_beta_2_reflects(backend):
    """With unit keys I - beta k k^T has the eigenvalue 1 - beta: beta = 2 turns the sign of what a key holds."""
    e = torch.eye(2, dtype=torch.float64)
    k = e[[0, 1, 0, 0]].reshape(1, 4, 1, 2)
    q = e[[0, 0, 0, 0]].reshape(1, 4, 1, 2)
    v = torch.tensor([3.0, 5.0, 0.0, 0.0], dtype=torch.float64).reshape(1, 4, 1, 1)
    beta = torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=torch.float64).reshape(1, 4, 1)
    options = dict(normalize_features=False, normalize_output=False, backend=backend)
    out, _ = OPERATORS["delta"](q, k, v, beta, **options)
    assert_close(out.flatten(), torch.tensor([3.0, 3.0, -3.0, 3.0], dtype=torch.float64), "rounding")
    out, _ = OPERATORS["gated_delta"](q, k, v, beta, torch.full_like(beta, 0.5), **options)
    assert_close(out.flatten(), torch.tensor([3.0, 1.5, -0.75, 0.375], dtype=torch.float64), "rounding")

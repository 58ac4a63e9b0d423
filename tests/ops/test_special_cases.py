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


def _others(q, k, v, beta, scale, backend):
    """Results of the gated and of the sum rule, each with that of the gated delta rule, whose keys are scaled."""
    options = dict(normalize_features=False, normalize_output=False, backend=backend)
    for rule, given, share, left in (("gated", (beta,), beta, 1 - beta), ("sum", (), beta**0, beta**0)):
        wanted, _ = OPERATORS[rule](q, k, v, *given, **options)
        found, _ = OPERATORS["gated_delta"](q, scale * k, v / scale, share, left, **options)
        yield wanted, found


@pytest.mark.parametrize("backend", TESTED)
def test_orthogonal_keys_make_it_the_gated_and_the_sum_rule(backend):
    """Nothing is there to take away. Keys need not have the length 1."""
    generator = torch.Generator().manual_seed(0)
    q, v = (torch.randn(2, 7, 3, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    k = torch.linalg.qr(torch.randn(2, 3, 7, 7, generator=generator, dtype=torch.float64))[0].transpose(1, 2)
    k = k * (0.5 + torch.rand(2, 7, 3, 1, generator=generator, dtype=torch.float64))
    beta = torch.rand(2, 7, 3, generator=generator, dtype=torch.float64)
    for wanted, found in _others(q, k, v, beta, 1, backend):
        assert_close(found, wanted, "operator")


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

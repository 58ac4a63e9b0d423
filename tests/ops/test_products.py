"""Products of everything between two positions, also where factors are zero or negative."""

import pytest
import torch

from fwp_fairseq.ops.products import BLOCK, products_between, running_products
from tests.tolerances import assert_close


def factors(length: int, dtype=torch.float64) -> torch.Tensor:
    """Shares that decay slowly and fast, zeros beside each other and alone, and negative ones."""
    x = torch.rand(2, length, dtype=torch.float64)
    x[:, 1::3] *= 1e-4
    x[0, 2::7] = x[0, 3::7] = 0
    x[1, 5::11] *= -1
    return x.to(dtype)


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    length = x.shape[-1]
    y = x.new_zeros(*x.shape, length)
    for s in range(length):
        y[..., s, s] = 1
        for t in range(s + 1, length):
            y[..., t, s] = y[..., t - 1, s] * x[..., t]
    return y


@pytest.mark.parametrize("length", [0, 1, 2, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 64, 100, 2 * BLOCK**2 + 3])
def test_every_pair_of_positions(length):
    x = factors(length)
    expected = one_by_one(x)
    assert_close(products_between(x), expected, "rounding")
    # The same relative accuracy in float32, however small the product.
    found, exact = products_between(x.float()).double(), one_by_one(x.float().double())
    large = exact.abs() > 1e-37
    assert_close(found[large] / exact[large], torch.ones_like(exact[large]), "float32")
    assert not found[exact == 0].any()
    if length:
        assert_close(running_products(x, 1), x[:, :1] * expected[..., 0], "rounding")


def test_derivatives_of_any_order():
    for length in (3, 2 * BLOCK + 3):
        x = factors(length).requires_grad_()
        for function in (products_between, lambda y: running_products(y, 1)):
            assert torch.autograd.gradcheck(function, x, fast_mode=True, check_forward_ad=True)
            assert torch.autograd.gradgradcheck(function, x, fast_mode=True)

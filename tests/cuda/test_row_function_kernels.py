"""The functions of rows for CUDA, on the shim, against PyTorch in float64; races.py watches them."""

import pytest
import torch
from torch import Tensor

from fwp_fairseq.feature_maps import unit_rows
from tests.cuda.row_function_kernels import FUNCTIONS, run

pytestmark = pytest.mark.slow
NAMES = pytest.mark.parametrize("name", FUNCTIONS)


def expected(name: str, x: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The function and its gradient for the cotangent g."""
    x = x.double().requires_grad_()
    if name == "softmax_pair":
        y = torch.cat([x.softmax(-1), (-x).softmax(-1)], -1)
    else:
        y = unit_rows._IN_PYTORCH[name](x, eps)
    return y.detach(), torch.autograd.grad(y, x, g.double())[0]


def found(name: str, x: Tensor, g: Tensor, eps: float, **options) -> tuple[Tensor, Tensor]:
    y = run(name, x, eps=eps, **options)
    return y, run(name, y if name == "softmax_pair" else x, g, eps=eps, **options)


def assert_close(mine: tuple, theirs: tuple) -> None:
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-6)


def cotangent(name: str, x: Tensor) -> Tensor:
    return torch.randn(*x.shape[:-1], x.shape[-1] * (1 + (name == "softmax_pair")))


@NAMES
@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("n", [1, 3, 31, 32, 33, 64, 100, 128, 300])
def test_values_and_gradients(name, n, schedule):
    """Widths below, at and beyond a warp; with an eps that counts, too, and a row of large numbers."""
    x = torch.randn(2, 3, n)
    x[0, 1] *= 100
    g = cotangent(name, x)
    for eps in (1e-6, 0.3):
        assert_close(found(name, x, g, eps, schedule=schedule), expected(name, x, g, eps))


@NAMES
def test_rows_in_any_place(name):
    """Dimensions in another order, rows apart from each other, and one row for many."""
    wide, turned = torch.randn(2, 3, 7, 40), torch.randn(7, 2, 3, 33).permute(1, 2, 0, 3)
    for x in (wide[..., 3:36], turned, wide[:, :1, ::2, :33].expand(2, 3, 4, 33)):
        g = cotangent(name, x).transpose(0, 2).contiguous().transpose(0, 2)
        assert_close(found(name, x, g, 0.1), expected(name, x, g, 0.1))


@NAMES
def test_more_rows_than_warps(name):
    x = torch.randn(13, 33)
    g = cotangent(name, x)
    assert_close(found(name, x, g, 0.1, blocks=1), expected(name, x, g, 0.1))


@NAMES
def test_rows_of_zeros(name):
    """The length of zeros has the gradient 0."""
    x = torch.zeros(2, 33)
    g = cotangent(name, x)
    assert_close(found(name, x, g, 1e-6), expected(name, x, g, 1e-6))


@NAMES
def test_nan_stays_in_its_row(name):
    x = torch.randn(3, 70)
    for at in (0, 40):
        x[1, at] = float("nan")
        g = cotangent(name, x)
        y, dx = found(name, x, g, 1e-6)
        assert y[1].isnan().all() and dx[1].isnan().all()
        for part, rows in zip((y, dx), expected(name, x[[0, 2]], g[[0, 2]], 1e-6), strict=True):
            torch.testing.assert_close(part[[0, 2]].double(), rows, rtol=2e-5, atol=2e-6)

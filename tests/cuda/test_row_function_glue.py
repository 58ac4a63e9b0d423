"""Functions of rows on CUDA through the glue, from Python's choice of the operator on: against PyTorch in float64."""

import pytest
import torch

from fwp_fairseq.feature_maps import softmax_pair, unit_rows
from tests.cuda.cases import OPCHECKS
from tests.cuda.test_glue import LAYOUTS, inner

pytestmark = pytest.mark.needs("native", "cuda")
FUNCTIONS = {
    "softmax_pair": softmax_pair.softmax_pair,
    "to_length_one": unit_rows.to_length_one,
    "elu_to_length_one": unit_rows.elu_to_length_one,
    "to_rms_one": unit_rows.to_rms_one,
}
NAMES = pytest.mark.parametrize("name", FUNCTIONS)


def numbers(name: str, eps: float) -> tuple[float, ...]:
    """What the function takes beside rows."""
    return () if name == "softmax_pair" else (eps,)


def function(name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return FUNCTIONS[name](x, *numbers(name, eps))


def cotangent(name: str, x: torch.Tensor) -> torch.Tensor:
    return torch.randn(*x.shape[:-1], x.shape[-1] * (1 + (name == "softmax_pair")))


def is_served(name: str, y) -> bool:
    """Returns True if the operator made y, not PyTorch."""
    return name in y.grad_fn.name()


def assert_agree(name: str, x, g, eps=0.1, layout=torch.Tensor.contiguous):
    """The function and its gradient for the cotangent g, with PyTorch in float64."""
    given, exact = layout(x.cuda()).requires_grad_(), x.double().requires_grad_()
    y, wanted = function(name, given, eps), FUNCTIONS[name].in_pytorch(exact, *numbers(name, eps))
    (dx,) = torch.autograd.grad(y, given, layout(g.cuda()))
    assert is_served(name, y) and y.dtype == dx.dtype == torch.float32
    for mine, theirs in ((y, wanted), (dx, torch.autograd.grad(wanted, exact, g.double())[0])):
        torch.testing.assert_close(mine.detach().cpu().double(), theirs.detach(), rtol=2e-5, atol=2e-6)


@NAMES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_gradients(name, layout):
    x = torch.randn(2, 5, 3, 40)
    assert_agree(name, x, cotangent(name, x), layout=LAYOUTS[layout])


@NAMES
def test_rows_of_any_number_of_dimensions(name):
    """More than a call has room for, and none; one row for many."""
    x = torch.randn(2, 3, 2, 3, 2, 3, 5)
    assert_agree(name, x, cotangent(name, x), layout=inner)
    x = torch.randn(70)
    assert_agree(name, x, cotangent(name, x))
    x = torch.randn(1, 3, 5).expand(4, 3, 5)
    assert_agree(name, x, cotangent(name, x), layout=lambda y: y)


@NAMES
def test_nothing_to_compute(name):
    """No row; rows of no number are PyTorch's."""
    for shape in ((0, 3, 5), (2, 0)):
        x = torch.zeros(shape).cuda().requires_grad_()
        y = function(name, x, 0.1)
        assert y.shape[:-1] == x.shape[:-1]
        assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


@NAMES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_pytorchs(name, dtype):
    x = torch.randn(3, 40).to(dtype)
    y = function(name, x.cuda().requires_grad_(), 0.1)
    assert y.dtype == dtype and not is_served(name, y)


@NAMES
@pytest.mark.parametrize("check", OPCHECKS)
def test_opcheck(name, check):
    x = torch.randn(3, 4, 6).transpose(0, 1).cuda()
    eps = numbers(name, 0.1)
    torch.library.opcheck(getattr(torch.ops.fwp, name).default, (x.clone().requires_grad_(), *eps), test_utils=check)
    backward = getattr(torch.ops.fwp, f"{name}_backward").default
    torch.library.opcheck(backward, (torch.randn(4, 3, 6).cuda(), x, *eps), test_utils=check)


@NAMES
@pytest.mark.parametrize("n", [1, 3, 31, 32, 33, 64, 100, 128, 300])
def test_widths(name, n):
    """Below, at and beyond a warp; with an eps that counts, too, and a row of large numbers."""
    x = torch.randn(2, 3, n)
    x[0, 1] *= 100
    for eps in (1e-6, 0.3):
        assert_agree(name, x, cotangent(name, x), eps)


@NAMES
def test_rows_of_zeros(name):
    """The length of zeros has the gradient 0."""
    x = torch.zeros(2, 33)
    assert_agree(name, x, cotangent(name, x), 1e-6)

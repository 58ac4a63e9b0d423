"""Rows of length one, or with a root mean square of one: compiled against PyTorch, derivatives, what is refused."""

import pytest
import torch

from fwp_fairseq.feature_maps import Elu, unit_rows
from fwp_fairseq.feature_maps.row_functions import RowFunction
from tests.ops import instruction_sets
from tests.tolerances import assert_close

needs_native = pytest.mark.needs("native")


def to_length_one(x, eps):
    return x / (x.square().sum(-1, keepdim=True).sqrt() + eps)


EXPECTED = {
    "to_length_one": to_length_one,
    "elu_to_length_one": lambda x, eps: to_length_one(torch.nn.functional.elu(x) + 1, eps),
    "to_rms_one": lambda x, eps: x / (x.square().mean(-1, keepdim=True) + eps).sqrt(),
}
both = pytest.mark.parametrize("name", list(EXPECTED))


@needs_native
@both
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values_and_gradients(name, instruction_set):
    """Rows below, at and beyond whole vectors, in any order of memory; with an eps that counts, too."""
    mine, expected = getattr(unit_rows, name), EXPECTED[name]
    with instruction_sets.chosen(instruction_set):
        for dtype, tolerance in ((torch.float64, "operator"), (torch.float32, "float32")):
            for n in (1, 2, 5, 8, 16, 17, 31, 48, 64, 100):
                for eps in (1e-6, 0.3):
                    x = torch.randn(3, 4, 2, n, dtype=torch.float64).requires_grad_()
                    g = torch.randn(3, 4, 2, n, dtype=torch.float64)
                    wanted = expected(x, eps)
                    (gradient,) = torch.autograd.grad((wanted * g).sum(), x)
                    for order in ((0, 1, 2), (2, 0, 1)):
                        back = sorted(range(3), key=order.__getitem__)
                        given = x.detach().to(dtype).permute(*order, 3).contiguous().permute(*back, 3).requires_grad_()
                        found = mine(given, eps)
                        assert found.stride() == given.stride()
                        assert_close(found.double(), wanted, tolerance)
                        (of_given,) = torch.autograd.grad((found * g.to(dtype)).sum(), given)
                        assert_close(of_given.double(), gradient, tolerance)


@needs_native
@both
def test_derivatives(name):
    mine = getattr(unit_rows, name)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(getattr(torch.ops.fwp, name).default, (x, 0.1))
    assert torch.autograd.gradcheck(lambda x: mine(x, 0.1), x)
    assert torch.autograd.gradgradcheck(lambda x: mine(x, 0.1), x)
    tangent = torch.randn(3, 5, dtype=torch.float64)
    found, wanted = (
        torch.func.jvp(lambda x, f=function: f(x, 0.1), (x.detach(),), (tangent,))
        for function in (mine, EXPECTED[name])
    )
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, "operator")


@needs_native
@pytest.mark.parametrize("name", ["to_length_one", "to_rms_one"])
def test_rows_of_zeros_and_of_nothing(name):
    mine, x = getattr(unit_rows, name), torch.zeros(2, 5, requires_grad=True)
    out = mine(x, 1e-6)
    assert torch.equal(out, torch.zeros(2, 5))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert_close(gradient, torch.full((2, 5), {"to_length_one": 1e6, "to_rms_one": 1e3}[name]), "float32")
    assert mine(torch.zeros(0, 5), 1e-6).shape == (0, 5) and mine(torch.zeros(2, 0), 1e-6).shape == (2, 0)


@needs_native
@both
def test_nan_stays_in_its_row(name):
    x = torch.randn(3, 20)
    x[1, 3] = float("nan")
    found = getattr(unit_rows, name)(x, 1e-6)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


@needs_native
@both
def test_refused(name):
    forward, backward = (getattr(torch.ops.fwp, f"{name}{end}") for end in ("", "_backward"))
    for call, message in (
        (lambda: forward(torch.ones(3, 4).half(), 1e-6), f"fwp::{name}: x is of type Half, expected Float or Double"),
        (lambda: forward(torch.ones(3, 0), 1e-6), rf"fwp::{name}: x is of shape \[3, 0\], expected rows of numbers"),
        (lambda: backward(torch.ones(3, 4), torch.ones(3, 6), 1e-6), r"grad_y is of shape \[3, 4\], expected \[3, 6\]"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()


def test_elu_serves_no_subclass():
    class Shifted(Elu):
        def features(self, x):
            return super().features(x + 1)

    x = torch.randn(3, 4)
    assert_close(Elu(4).of_length_one(x, 0.1), EXPECTED["elu_to_length_one"](x, 0.1), "float32")
    assert_close(Shifted(4).of_length_one(x, 0.1), EXPECTED["elu_to_length_one"](x + 1, 0.1), "float32")


@both
def test_half_precision_and_no_library_are_pytorchs(name, monkeypatch):
    mine, x = getattr(unit_rows, name), torch.randn(3, 4)
    assert mine(x.half(), 1e-3).dtype == torch.float16
    monkeypatch.setattr(RowFunction, "serves", lambda self, x: False)
    assert_close(mine(x, 0.2), EXPECTED[name](x, 0.2), "float32")

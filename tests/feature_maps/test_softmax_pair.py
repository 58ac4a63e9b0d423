"""[softmax(y), softmax(-y)]: compiled against PyTorch, derivatives, memory layouts, what is refused."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.feature_maps.row_functions import RowFunction
from fwp_fairseq.feature_maps.softmax_pair import SoftmaxPair, softmax_pair
from tests.ops import instruction_sets
from tests.tolerances import assert_close

needs_native = pytest.mark.needs("native")


def expected(y: torch.Tensor) -> torch.Tensor:
    return torch.cat([y.softmax(-1), (-y).softmax(-1)], -1)


@needs_native
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values_and_gradients(instruction_set):
    """Rows below, at and beyond whole vectors, in any order of memory, of numbers of any size."""
    with instruction_sets.chosen(instruction_set):
        for dtype, tolerance in ((torch.float64, "operator"), (torch.float32, "float32")):
            for n in (1, 2, 5, 8, 16, 17, 31, 32, 48, 64, 100):
                y = 3 * torch.randn(2, 3, 5, n, dtype=torch.float64)
                y[0, 0] *= 100
                g = torch.randn(2, 3, 5, 2 * n, dtype=torch.float64)
                y.requires_grad_()
                wanted = expected(y)
                (gradient,) = torch.autograd.grad((wanted * g).sum(), y)
                for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
                    back = sorted(range(3), key=order.__getitem__)
                    mine = y.detach().to(dtype).permute(*order, 3).contiguous().permute(*back, 3).requires_grad_()
                    found = softmax_pair(mine)
                    assert found.stride()[:3] == tuple(2 * step for step in mine.stride()[:3])
                    assert_close(found.double(), wanted, tolerance)
                    (of_mine,) = torch.autograd.grad((found * g.to(dtype)).sum(), mine)
                    assert_close(of_mine.double(), gradient, tolerance)


@needs_native
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_operators_take_numbers_of_any_size(instruction_set):
    """exp of any of them alone would be 0 or infinite; the features are those of the largest and of the smallest."""
    phi, x = SoftmaxPair(5), 300 * torch.randn(3, 2, 40, 2, 5, dtype=torch.float64)
    x[0, 0, :3] = 1e30
    results = []
    for backend, dtype in (("reference", torch.float64), ("native", torch.float64), ("native", torch.float32)):
        q, k, v = (y.to(dtype).requires_grad_() for y in x)
        with instruction_sets.chosen(instruction_set):
            out, state = ops.sum_rule(q, k, v, feature_map=phi, return_state=True, backend=backend)
            gradients = torch.autograd.grad(out.sin().sum() + state.W.sin().sum(), (q, k, v))
        results.append((out, state.W, state.z, *gradients))
    expected, double, single = results
    for mine, wanted in zip(double, expected, strict=True):
        assert_close(mine, wanted, "operator")
    for mine, wanted in zip(single[:3], expected, strict=False):
        assert_close(mine.double(), wanted, "float32")
    assert all(gradient.isfinite().all() for gradient in single[3:])  # nearly 0, and so is what cancels


@needs_native
def test_derivatives():
    y = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(torch.ops.fwp.softmax_pair.default, (y,))
    assert torch.autograd.gradcheck(softmax_pair, y)
    assert torch.autograd.gradgradcheck(softmax_pair, y)
    tangent = torch.randn(3, 5, dtype=torch.float64)
    found, wanted = (torch.func.jvp(function, (y.detach(),), (tangent,)) for function in (softmax_pair, expected))
    for mine, theirs in zip(found, wanted, strict=True):
        assert_close(mine, theirs, "operator")


@needs_native
def test_strided_and_empty_rows():
    wide = torch.randn(4, 3, 20, dtype=torch.float64)
    assert_close(softmax_pair(wide[..., ::2]), expected(wide[..., ::2]), "operator")
    assert_close(softmax_pair(wide.transpose(0, 2)), expected(wide.transpose(0, 2)), "operator")
    assert_close(softmax_pair(wide[:1].expand(5, 3, 20)), expected(wide[:1].expand(5, 3, 20)), "operator")
    assert softmax_pair(torch.zeros(0, 3, 5)).shape == (0, 3, 10) and softmax_pair(torch.zeros(2, 0)).shape == (2, 0)


@needs_native
def test_nan_and_infinity_stay_in_their_row():
    y = torch.randn(3, 20)
    y[1, 3] = float("nan")
    found = softmax_pair(y)
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], softmax_pair(y[[0, 2]]))


@needs_native
def test_refused():
    forward, backward, ones = torch.ops.fwp.softmax_pair, torch.ops.fwp.softmax_pair_backward, torch.ones
    for call, message in (
        (lambda: forward(ones(3, 4).half()), "fwp::softmax_pair: y is of type Half, expected Float or Double"),
        (lambda: forward(ones(3, 0)), r"fwp::softmax_pair: y is of shape \[3, 0\], expected rows of numbers"),
        (lambda: backward(ones(3, 4), ones(3, 6)), r"grad_f is of shape \[3, 4\], expected \[3, 6\]"),
        (lambda: backward(ones(3, 5), ones(3, 5)), "f is of width 5, expected an even one"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()


def test_half_precision_and_no_library_are_pytorchs(monkeypatch):
    y = torch.randn(3, 4)
    assert torch.equal(softmax_pair(y.half()), expected(y.half()))
    monkeypatch.setattr(RowFunction, "serves", lambda self, x: False)
    assert torch.equal(softmax_pair(y), expected(y))

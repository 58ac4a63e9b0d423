"""Functions of rows: compiled against PyTorch, derivatives, memory layouts, numbers of any size."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import Elu, unit_rows
from fwp_fairseq.feature_maps.softmax_pair import SoftmaxPair, softmax_pair
from tests.ops import instruction_sets
from tests.tolerances import assert_close

needs_native = pytest.mark.needs("native")


def to_length_one(x, eps):
    return x / (x.square().sum(-1, keepdim=True).sqrt() + eps)


# Name to the function, and what it has to be.
FUNCTIONS = {
    "softmax_pair": (
        lambda x, eps: softmax_pair(x), lambda x, eps: torch.cat([x.softmax(-1), (-x).softmax(-1)], -1)
    ),
    "to_length_one": (unit_rows.to_length_one, to_length_one),
    "elu_to_length_one": (
        unit_rows.elu_to_length_one, lambda x, eps: to_length_one(torch.nn.functional.elu(x) + 1, eps)
    ),
    "to_rms_one": (unit_rows.to_rms_one, lambda x, eps: x / (x.square().mean(-1, keepdim=True) + eps).sqrt()),
}  # fmt: skip
each = pytest.mark.parametrize("name", FUNCTIONS)


@needs_native
@each
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values_and_gradients(name, instruction_set):
    """Rows below, at and beyond whole vectors, in any order of memory; with an eps that counts, too."""
    mine, expected = FUNCTIONS[name]
    with instruction_sets.chosen(instruction_set):
        for dtype, tolerance in ((torch.float64, "operator"), (torch.float32, "float32")):
            for n in (1, 2, 5, 8, 16, 17, 31, 32, 48, 64, 100):
                eps = (1e-6, 0.3)[n % 2]
                x = 3 * torch.randn(2, 3, 5, n, dtype=torch.float64)
                if name != "elu_to_length_one":  # rows of features that are all 0 have no derivative
                    x[0, 0] *= 100
                x.requires_grad_()
                wanted = expected(x, eps)
                g = torch.randn_like(wanted)
                (gradient,) = torch.autograd.grad((wanted * g).sum(), x)
                for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
                    back = sorted(range(3), key=order.__getitem__)
                    given = x.detach().to(dtype).permute(*order, 3).contiguous().permute(*back, 3).requires_grad_()
                    found = mine(given, eps)
                    wider = found.shape[-1] // n
                    assert found.stride()[:3] == tuple(wider * step for step in given.stride()[:3])
                    assert_close(found.double(), wanted, tolerance)
                    (of_given,) = torch.autograd.grad((found * g.to(dtype)).sum(), given)
                    assert_close(of_given.double(), gradient, tolerance)


@needs_native
@each
def test_derivatives(name):
    mine, expected = FUNCTIONS[name]
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mine(x, 0.1), x)
    assert torch.autograd.gradgradcheck(lambda x: mine(x, 0.1), x)
    tangent = torch.randn(3, 5, dtype=torch.float64)
    found, wanted = (torch.func.jvp(lambda x, f=f: f(x, 0.1), (x.detach(),), (tangent,)) for f in (mine, expected))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, "operator")


@needs_native
@each
def test_strided_and_empty_rows_nan_and_zeros(name):
    mine, expected = FUNCTIONS[name]
    wide = torch.randn(4, 3, 20, dtype=torch.float64)
    for x in (wide[..., ::2], wide.transpose(0, 2), wide[:1].expand(5, 3, 20)):
        assert_close(mine(x, 0.1), expected(x, 0.1), "operator")
    assert mine(torch.zeros(0, 3, 5), 0.1).shape[:2] == (0, 3) and mine(torch.zeros(2, 0), 0.1).shape == (2, 0)
    x = torch.randn(3, 20)
    x[1, 3] = float("nan")
    found = mine(x, 1e-6)
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], mine(x[[0, 2]], 1e-6))
    x = torch.zeros(2, 5, requires_grad=True)
    out = mine(x, 1e-6)
    assert torch.equal(out, expected(x, 1e-6)) or name == "elu_to_length_one"
    assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()


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


def test_elu_serves_no_subclass():
    class Shifted(Elu):
        def features(self, x):
            return super().features(x + 1)

    x, expected = torch.randn(3, 4), FUNCTIONS["elu_to_length_one"][1]
    assert_close(Elu(4).of_length_one(x, 0.1), expected(x, 0.1), "float32")
    assert_close(Shifted(4).of_length_one(x, 0.1), expected(x + 1, 0.1), "float32")

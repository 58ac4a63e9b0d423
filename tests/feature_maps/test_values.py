"""Values, signs, widths and laws of the deterministic maps; types and sizes of all."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import FEATURE_MAPS, build_feature_map, unit_rows
from tests import naive
from tests.tolerances import assert_close

D_KEY = 6
BUILT = {
    "elu": {},
    "relu": {},
    "identity": {},
    "dpfp": {"nu": 3},
    "favor": {"m": 8},
    "t2r": {"n": 7, "heads": 1},
    "hedgehog": {"n": 8, "heads": 1},
    "rfa": {"m": 5, "heads": 1},
}
VECTORS = st.lists(st.floats(-4, 4), min_size=2, max_size=7)


def test_the_table_is_complete():
    assert set(BUILT) == set(FEATURE_MAPS)


def test_elu_by_hand():
    x = torch.tensor([2.0, 0.0, -1.0, -math.log(4)], dtype=torch.float64)
    assert_close(build_feature_map("elu", 4)(x), torch.tensor([3, 1, math.exp(-1), 0.25]).double(), "float32")


def test_small_features_of_elu_keep_their_digits():
    x = torch.linspace(-80, -1, 41).requires_grad_()
    y = build_feature_map("elu", 41)(x)
    exact = x.detach().double().exp()
    torch.testing.assert_close(y.double(), exact, rtol=2e-6, atol=0)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0].double(), exact, rtol=2e-6, atol=0)
    rows = x.detach().expand(2, 41) - torch.tensor([[0.0], [10.0]])
    found, wanted = (unit_rows.elu_to_length_one.in_pytorch(z, 1e-30) for z in (rows, rows.double()))
    torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=0)


def test_relu_by_hand():
    x = torch.tensor([2.0, 0.0, -1.0, math.nan])
    assert_close(build_feature_map("relu", 4)(x)[:3], torch.tensor([2.0, 0.0, 0.0]), "float32")
    assert build_feature_map("relu", 4)(x)[3].isnan()


def test_dpfp_by_hand():
    # x = (2, -3): r = (2, 0, 0, 3); rolled by one to the right: (3, 2, 0, 0); by two: (0, 3, 2, 0).
    x = torch.tensor([2.0, -3.0])
    assert build_feature_map("dpfp", 2, nu=1)(x).tolist() == [6, 0, 0, 0]
    # x = (2, 3): r = (2, 3, 0, 0); rolled by one: (0, 2, 3, 0), by two: (0, 0, 2, 3), by three: (3, 0, 0, 2).
    x = torch.tensor([2.0, 3.0])
    assert build_feature_map("dpfp", 2, nu=3)(x).tolist() == [0, 6, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0]


@given(VECTORS, st.integers(1, 3))
def test_dpfp_is_the_naive_one(values, nu):
    x = torch.tensor(values, dtype=torch.float64)
    assert_close(build_feature_map("dpfp", len(values), nu=nu)(x), naive.dpfp(nu)(values), "rounding")


@pytest.mark.parametrize("name", BUILT)
@given(x=st.lists(st.floats(-4, 4), min_size=D_KEY, max_size=D_KEY), scale=st.floats(0.01, 100))
def test_maps_keep_what_they_promise(name, x, scale):
    phi = build_feature_map(name, D_KEY, **BUILT[name])
    x = torch.tensor([[x]], dtype=torch.float64)
    if phi.homogeneity is not None:
        assert_close(phi(scale * x) / scale**phi.homogeneity, phi(x), "rounding")
    assert not phi.non_negative or (phi(x) >= 0).all()


@pytest.mark.needs("native")
@pytest.mark.parametrize("name", [name for name, cls in FEATURE_MAPS.items() if cls.kernel])
def test_kernels_compute_the_features_of_their_maps(name):
    phi = build_feature_map(name, D_KEY, **BUILT[name]).eval()
    q, k, v = torch.randn(3, 1, 5, 2, D_KEY, dtype=torch.float64)
    results = [
        ops.sum_rule(q, k, v, feature_map=phi, normalize_output=False, backend=backend)[0]
        for backend in ("native", "chunked")
    ]
    assert_close(*results, "rounding")


def test_a_subclass_inherits_no_promise():
    class Other(FEATURE_MAPS["dpfp"]):
        non_negative = True

    class Further(Other):
        further = 1

    class Same(Other):  # as PyTorch makes them where it shards and parametrizes modules
        __slots__ = ()

    assert (Other.homogeneity, Other.non_negative, Other.kernel) == (None, True, None)
    assert (Further.homogeneity, Further.non_negative, Further.kernel) == (None, False, None)
    assert (Same.homogeneity, Same.non_negative, Same.kernel) == (None, True, None)


def test_a_quarter_of_dpfp_is_not_zero():
    share = (build_feature_map("dpfp", 64, nu=3)(torch.randn(1000, 64)) > 0).double().mean()
    assert 0.24 < share < 0.26


@pytest.mark.parametrize("name", BUILT)
def test_width_sign_and_type(name):
    phi = build_feature_map(name, D_KEY, **BUILT[name])
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(2, 1, 3, D_KEY).to(dtype)
        features = phi(x)
        assert features.shape == (2, 1, 3, phi.d_dot)
        assert features.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        if name in ("elu", "favor", "hedgehog"):
            assert (features > 0).all()


@pytest.mark.parametrize("name", BUILT)
def test_large_half_precision_inputs(name):
    """float16 ends at 65504: no NaN, no infinity, in values or gradients."""
    phi = build_feature_map(name, D_KEY, **BUILT[name])
    for dtype in (torch.float16, torch.bfloat16):
        for size in (1e-4, 1.0, 300.0, 60000.0):
            x = (size * torch.linspace(-1, 1, D_KEY)).to(dtype)[None, None].requires_grad_()
            features = phi(x)
            assert features.isfinite().all(), size
            features.mean().backward()
            assert x.grad.dtype == dtype and not x.grad.isnan().any(), size


@pytest.mark.parametrize("name", BUILT)
def test_gradcheck(name):
    phi = build_feature_map(name, D_KEY, **BUILT[name])
    assert torch.autograd.gradcheck(phi, torch.randn(1, 2, D_KEY, dtype=torch.float64, requires_grad=True))


def test_learned_maps_by_hand():
    x = torch.tensor([[[2.0, -1.0]]], dtype=torch.float64)
    phi = build_feature_map("t2r", 2, n=3, heads=1).double()
    with torch.no_grad():
        phi.weight.copy_(torch.tensor([[[1, 0], [0, 1], [1, 1]]]))
        phi.bias.copy_(torch.tensor([[0.5, 0.5, -2]]))
    assert phi(x).tolist() == [[[2.5, 0, 0]]]
    phi = build_feature_map("hedgehog", 2, heads=1)
    a, b = 1 / (1 + math.exp(-3)), 1 / (1 + math.exp(3))
    assert_close(phi(x), torch.tensor([[[a, b, b, a]]], dtype=torch.float64), "rounding")


@pytest.mark.parametrize("n", [3, 6, 15])
def test_hedgehog_starts_with_the_identity_and_no_equal_rows(n):
    for weight in build_feature_map("hedgehog", D_KEY, n=n, heads=2).weight.detach():
        assert torch.equal(weight[:D_KEY], torch.eye(n, D_KEY)[:D_KEY])
        for block in weight.split(D_KEY):
            assert_close(block @ block.T, torch.eye(len(block)), "float32")
        assert len(weight.unique(dim=0)) == n

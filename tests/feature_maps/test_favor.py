"""FAVOR+: what the draws estimate, how they are drawn and kept; test_rfa.py has when they are redrawn."""

import math

import pytest
import torch

from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.feature_maps.favor import draw_projection
from fwp_fairseq.layers import FastWeightAttention
from tests.tolerances import TOLERANCES, assert_close

D_KEY = 4


def test_estimates_the_softmax_kernel_without_bias():
    """Mean over 2000 draws of phi(q).phi(k), for pairs of several angles, against exp(q.k / sqrt(d))."""
    q = torch.tensor([[1.0, 0, 0, 0], [0.5, -0.5, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.float64)
    k = torch.tensor([[1.0, 0, 0, 0], [-0.5, 0.5, 1, 1], [-1, 0, 0.5, 0], [1, 2, 0, 0]], dtype=torch.float64)
    phi = build_feature_map("favor", D_KEY, m=32).train()
    total = torch.zeros(4, dtype=torch.float64)
    for number in range(2000):
        phi.set_num_updates(number)
        total += (phi(q) * phi(k)).sum(-1)
    expected = ((q * k).sum(-1) / math.sqrt(D_KEY)).exp()
    assert ((total / 2000 - expected).abs() <= TOLERANCES["favor_mean"] * expected).all()


@pytest.mark.parametrize("m, d_key", [(4, 4), (12, 4), (10, 4), (3, 8)])
def test_blocks_are_orthogonal(m, d_key):
    rows = draw_projection(m, d_key, torch.Generator().manual_seed(0)).double()
    assert rows.shape == (m, d_key)
    for block in rows.split(d_key):
        gram = block @ block.T
        assert_close(gram - gram.diagonal().diag(), torch.zeros_like(gram), "float32")
    if m > d_key:
        assert (rows[:d_key] @ rows[d_key:].T).abs().max() > 1e-3


def test_rows_are_as_long_as_gaussian_ones():
    lengths = draw_projection(4000, 4, torch.Generator().manual_seed(0)).square().sum(1)
    assert abs(lengths.mean() - 4) < 0.2 and abs(lengths.var() - 8) < 1.5


def test_fixed_directions_are_those_of_evaluation():
    layer = FastWeightAttention("favor", D_KEY, 1, d_dot=8, directions="fixed")
    phi, x = layer.feature_map, torch.randn(3, D_KEY)
    expected = phi.eval()(x)
    phi.train().set_num_updates(7)
    assert torch.equal(phi(x), expected) and torch.equal(phi.kernel_projection(), phi.projection)
    other = FastWeightAttention("favor", D_KEY, 1, d_dot=8, directions="fixed").train().feature_map
    other.load_state_dict(phi.state_dict())
    assert torch.equal(other(x), expected)


def test_redrawing_leaves_the_global_generator_alone():
    phi = build_feature_map("favor", D_KEY, m=8)
    before = torch.get_rng_state()
    with torch.device("meta"):  # another default device, as it may be a GPU
        phi.set_num_updates(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("convert", [torch.nn.Module.half, torch.nn.Module.bfloat16], ids=["half", "bfloat16"])
def test_the_projection_stays_float32(convert):
    phi = build_feature_map("favor", D_KEY, m=8).eval()
    projection = phi.projection.clone()
    model = convert(torch.nn.ModuleList([phi, torch.nn.Linear(2, 2)]))
    assert model[1].weight.dtype in (torch.float16, torch.bfloat16)
    assert torch.equal(phi.projection, projection) and phi.projection.dtype == torch.float32
    assert phi.training_projection.dtype == torch.float32
    phi.set_num_updates(3)
    assert phi.training_projection.dtype == torch.float32
    assert torch.equal(model.float()[0].projection, projection)


def test_ordinary_keys_do_not_underflow():
    """Keys of unit-variance coordinates, d_key = 64: without the temperature exp(-|k|^2 / 2) would be 1e-14."""
    phi = build_feature_map("favor", 64, m=64)
    x = torch.randn(100, 64)
    assert (phi(x) * phi(x)).sum(-1).min() > 1e-3

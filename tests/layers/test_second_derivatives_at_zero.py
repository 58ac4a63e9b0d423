"""Second derivatives where a query, a key or the whole input is exactly 0."""

import pytest
import torch

from fwp_fairseq.feature_maps import build_feature_map, unit_rows
from fwp_fairseq.layers import FastWeightAttention

LAYERS = {
    "qk_norm": {"feature_map": "elu", "qk_norm": "l2"},
    "rfa": {"feature_map": "rfa"},
    "l2 of features": {"feature_map": "relu", "update_rule": "delta", "normalizer": "l2"},
    "sum": {"feature_map": "dpfp", "update_rule": "delta"},
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_of_a_layer(name, dtype):
    torch.manual_seed(1)
    layer = FastWeightAttention("dpfp", 8, 2, backend="chunked", **LAYERS[name]).to(dtype)
    for projection in (layer.q_proj, layer.k_proj):
        torch.nn.init.zeros_(projection.bias)
    x = torch.randn(1, 4, 8, dtype=dtype)
    x[0, 1] = 0
    leaves = [x.requires_grad_(), *layer.parameters()]
    gradients = torch.autograd.grad(layer(x)[0].square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in (*gradients, *second))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_of_rows(dtype):
    """The first derivative at 0 is 1 / eps times the identity; the second is 0, the mean of those on both sides."""
    for size in (0.0, 1e-30):  # the length of the second is 0 in float32
        x = torch.full((2, 3), size, dtype=dtype, requires_grad=True)
        (first,) = torch.autograd.grad(unit_rows.to_length_one(x, 0.5)[0, 0], x, create_graph=True)
        torch.testing.assert_close(first[0, 0], torch.tensor(2.0, dtype=dtype))
        (second,) = torch.autograd.grad(first.sum(), x)
        assert second.isfinite().all() and (size or not second.any())


def test_values_are_those_of_the_norm():
    x = torch.randn(50, 7)
    x[3] = 0
    assert torch.equal(unit_rows.to_length_one.in_pytorch(x, 1e-6), x / (x.norm(dim=-1, keepdim=True) + 1e-6))
    phi = build_feature_map("rfa", 7, heads=50)
    assert phi(x[:, None]).isfinite().all()

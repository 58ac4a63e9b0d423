"""The polynomial map: its products, which the backend `chunked` computes without features, and all that follows."""

import pytest
import torch

from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.feature_maps.poly import Poly
from fwp_fairseq.ops import RULES, STRENGTHS
from tests import naive
from tests.ops.cases import OPERATORS
from tests.pairs import covering
from tests.tolerances import assert_close


@pytest.mark.parametrize("d_key, degree", [(1, 2), (2, 6), (5, 2), (3, 4)])
def test_products_are_those_of_the_kernel(d_key, degree):
    phi, x, y = build_feature_map("poly", d_key, degree=degree), *torch.randn(2, 4, d_key, dtype=torch.float64)
    naive_phi = naive.poly(degree)
    expected = [[naive_phi(q.numpy()) @ naive_phi(k.numpy()) for k in y] for q in x]
    assert_close((1 + x @ y.T / d_key**0.5 / degree) ** degree, expected, "rounding")
    assert_close(phi(x) @ phi(y).T, expected, "rounding")
    assert_close(phi.products(x, y), expected, "rounding")


def test_odd_degrees_are_refused():
    with pytest.raises(ValueError, match="degree = 3, expected an even number from 2 on"):
        build_feature_map("poly", 4, degree=3)


def test_a_subclass_with_other_features_does_not_inherit_the_products():
    class Other(Poly):
        def features(self, x):
            return super().features(x) + 1

    assert Other.products is None and Poly.products is not None


@pytest.mark.parametrize(
    "rule, causal, length, state", covering(RULES, [True, False], [1, 9, 150], [True, False], strength=3)
)
@pytest.mark.parametrize("normalized", [True, False])
def test_chunked_is_the_reference_with_and_without_states(rule, causal, length, state, normalized):
    """Values and gradients; 150 positions are several chunks, whose states have features."""
    batch, heads, d_key, d_value, targets = 2, 3, 4, 5, length if causal else 4
    phi = build_feature_map("poly", d_key, degree=2)
    shapes = {"q": (batch, targets, heads, d_key), "k": (batch, length, heads, d_key)}
    shapes |= {"v": (batch, length, heads, d_value)}
    x = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    # Features here are longer than 1, and a delta rule with larger steps would amplify what W holds.
    x |= {name: 0.02 + 0.02 * torch.rand(batch, length, heads, dtype=torch.float64) for name in STRENGTHS[rule]}
    initial = None
    if state:
        W = torch.randn(batch, heads, phi.d_dot, d_value, dtype=torch.float64)
        initial = (W, phi(torch.randn(batch, heads, d_key, dtype=torch.float64)) if normalized else None)
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[1, length // 2 + 1 :] = True
    results = []
    for backend in ("chunked", "reference"):
        leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
        out, found = OPERATORS[rule](
            *leaves.values(), feature_map=phi, causal=causal, key_padding_mask=mask, normalize_output=normalized,
            initial_state=initial, return_state=state, backend=backend,
        )  # fmt: skip
        total = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
        results.append([out, *(found or ()), *torch.autograd.grad(total, list(leaves.values()))])
    for actual, expected in zip(*results, strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            assert_close(actual, expected, "operator")

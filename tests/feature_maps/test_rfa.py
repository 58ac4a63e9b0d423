"""RFA: the kernel that its features estimate; of both maps with random features, when the directions are redrawn."""

import pytest
import torch

from fwp_fairseq.feature_maps import build_feature_map
from tests import naive
from tests.tolerances import assert_close

D_KEY, HEADS = 4, 2


def build(m=8):
    """In evaluation mode, with another sigma for every number."""
    phi = build_feature_map("rfa", D_KEY, m=m, heads=HEADS).eval()
    torch.nn.init.uniform_(phi.sigma, 0.5, 1.5)
    return phi


def test_values_are_those_of_the_naive_implementation_in_each_head():
    phi, x = build(), torch.randn(HEADS, 3, D_KEY, dtype=torch.float64)
    x[0, 0] = 0
    with torch.no_grad():
        found = phi(x)
        for h in range(HEADS):
            one = naive.rfa(phi.projection[h].double().numpy(), phi.sigma[h].double().numpy())
            for t in range(3):
                assert_close(found[h, t], one(x[h, t].numpy()), "rounding")
    assert_close(found.square().sum(-1), torch.ones(HEADS, 3), "rounding")


@torch.no_grad()
def test_directions_of_tiny_and_huge_rows():
    phi, x = build(), torch.randn(HEADS, 3, D_KEY)
    for size in (1e-37, 1e-23, 1e23, 1e37):
        assert_close(phi(x * size), phi(x), "float32")


@torch.no_grad()
def test_estimates_the_gaussian_kernel_of_directions():
    """The mean of 400 draws of 64 directions: its standard deviation is 1 / sqrt(2 * 64 * 400) = 0.0044 at most."""
    phi = build(m=64).train()
    q, k = 10 * torch.randn(2, HEADS, 5, D_KEY, dtype=torch.float64)
    mean = torch.zeros(HEADS, 5, dtype=torch.float64)
    for number in range(400):
        phi.set_num_updates(number)
        mean += (phi(q) * phi(k)).sum(-1) / 400
    directions = q / q.norm(dim=-1, keepdim=True) - k / k.norm(dim=-1, keepdim=True)
    expected = (-(phi.sigma.double()[:, None] * directions).square().sum(-1) / 2).exp()
    assert (mean - expected).abs().max() < 5 * 0.0044


@pytest.mark.parametrize("name", ["favor", "rfa"])
def test_training_redraws_the_same_on_every_worker_and_evaluation_keeps_its_directions(name):
    phi, other = (build_feature_map(name, D_KEY, m=8, heads=HEADS).eval() for _ in range(2))
    assert not torch.equal(phi.projection, other.projection)
    other.load_state_dict(phi.state_dict())
    x = torch.randn(HEADS, 3, D_KEY)
    kept, drawn = phi(x), []
    for updates in (0, 1, 2, 1000, 1):
        for y in (phi, other):
            y.train().set_num_updates(updates)
        assert torch.equal(phi.training_projection, other.training_projection) and torch.equal(phi(x), other(x))
        drawn.append(phi(x))
        phi.eval().set_num_updates(7)
        assert torch.equal(phi(x), kept)
    assert torch.equal(drawn.pop(), drawn[1])
    assert len({tuple(y.flatten().tolist()) for y in (kept, *drawn)}) == 5

import pytest
import torch

from benchmarks.profile import shares
from fwp_fairseq import ops


@pytest.mark.needs("native")
@pytest.mark.parametrize("training", [False, True])
def test_the_operator_counts_as_attention(training):
    """Also under autograd, which wraps the forward in a function of its own. The square root takes a tenth as long."""
    q, other = torch.rand(16, 64, 8, 64, requires_grad=training), torch.rand(2**20)
    found = shares(lambda: (ops.sum_rule(q, q, q, backend="native"), other.sqrt()))
    assert found["attention"] > 0.5 and found["optimizer"] > 0 and sum(found.values()) == pytest.approx(1)

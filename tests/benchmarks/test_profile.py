import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.profile import kind_of, shares
from fwp_fairseq import ops


def attend(q):
    return ops.sum_rule(q, q, q, backend="native")[0]


@pytest.mark.needs("native")
@pytest.mark.parametrize("training", [False, True])
def test_all_of_the_operator_counts_as_attention(training):
    """Also under autograd, which wraps the forward in a function of its own name and gives it the time."""
    q = torch.rand(2, 8, 2, 8, requires_grad=training)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        out = attend(q)
        if training:
            out.sum().backward()
    ours = [event.key for event in found.key_averages() if "fwp" in event.key]
    assert "fwp::fast_weights" in ours and ("fwp::fast_weights_backward" in ours) == training
    assert {kind_of(key) for key in ours if not key.startswith("autograd::")} == {"attention"}


@pytest.mark.needs("native")
def test_shares():
    found = shares(lambda: attend(torch.rand(2, 8, 2, 8)).sqrt())
    assert sum(found.values()) == pytest.approx(1)
    assert found["attention"] > 0 and found["optimizer"] > 0 and found["linear layers"] == 0


def test_what_is_no_operator_has_no_kind():
    assert (
        kind_of("ProfilerStep#1") is None
        and kind_of("aten::relu") == "rest"
        and kind_of("aten::addmm") == "linear layers"
    )

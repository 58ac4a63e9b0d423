"""A wrong operator is not timed."""

from dataclasses import replace

import pytest
import torch

from benchmarks import gate, operators
from benchmarks.cases import Case
from benchmarks.implementations import IMPLEMENTATIONS, Prepared

CHUNKED = IMPLEMENTATIONS["torch"]


def case(**changes) -> Case:
    return replace(Case("both", "float32", "delta", 16, 33, 128), **changes)


def broken(change, values_too=True):
    """The PyTorch composition with ``change(out)`` in place of its output, or of its gradient only."""

    def prepare(case, x):
        run, tensors, heads_first = CHUNKED.prepare(case, x)

        def other(**given):
            out = run(**given)
            return change(out) if values_too else out.detach() + change(out) - change(out).detach()

        return Prepared(other, tensors, heads_first)

    return replace(CHUNKED, prepare=prepare)


@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("name", ["torch", "softmax"])
def test_right_ones_pass(name, rule):
    errors = gate.check(name, IMPLEMENTATIONS[name], case(rule=rule), "cpu")
    beta = {"beta"} if rule == "delta" and name != "softmax" else set()
    assert set(errors) == {"out", "q", "k", "v"} | beta
    assert all(0 < size < 1e-4 for error in errors.values() for size in error)
    assert gate.worst(errors)["rms"] == max(error.rms for error in errors.values())


@pytest.mark.needs("native")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ours_pass(dtype):
    assert gate.check("ours", IMPLEMENTATIONS["ours"], case(dtype=dtype), "cpu")["out"].largest < 5e-3


@pytest.mark.parametrize(
    "change", [lambda y: -y, lambda y: y.roll(1, dims=1), lambda y: y * 1.001, lambda y: y + torch.nan]
)
def test_wrong_values_are_refused(change):
    with pytest.raises(gate.Refused, match="error of out"):
        gate.check("broken", broken(change), case(), "cpu")


def test_wrong_gradients_are_refused():
    with pytest.raises(gate.Refused, match="gradient of q"):
        gate.check("broken", broken(lambda y: y * 1.01, values_too=False), case(), "cpu")


def test_refused_ones_are_not_timed():
    wrong = broken(lambda y: -y)
    found = operators.measure(case(), "cpu", 0.01, {"ours": CHUNKED, "softmax": IMPLEMENTATIONS["softmax"], "p": wrong})
    assert set(found["seconds"]) == set(found["errors"]) == {"ours", "softmax"}
    assert "error of out" in found["refused"]["p"] and min(found["seconds"].values()) > 0
    found = operators.measure(case(), "cpu", 0.01, {"ours": wrong, "softmax": IMPLEMENTATIONS["softmax"]})
    assert found["seconds"] == {} and set(found["refused"]) == {"ours"}

"""Compares the retrieval model with its equations in plain loops, and tests that it learns."""

import numpy as np
import pytest
import torch

from scripts.experiments.synthetic.fast_weight_memory import fast_weight_memory
from scripts.experiments.synthetic.rows import Point
from scripts.experiments.synthetic.training import train
from tests.tolerances import TOLERANCES, error


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def naive_fast_weight_memory(q, k, v, beta):
    """Computes the memory by loops over batch, heads and time.

    Shapes: q (B, T, H, d), k (B, S, H, d), v (B, S, H, m), beta (B, S, H).
    """
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b in range(k.shape[0]):
        for h in range(k.shape[2]):
            W = beta[b, 0, h] * np.outer(v[b, 0, h], k[b, 0, h])
            for s in range(1, k.shape[1]):
                key, old = k[b, s, h], W @ k[b, s, h]
                new = beta[b, s, h] * v[b, s, h] + (1 - beta[b, s, h]) * old
                W = W - np.outer(old, key) + np.outer(new, key)
                W = W / (max(np.sqrt((W**2).sum()) - 1, 0) + 1)
            out[b, :, h] = q[b, :, h] @ W.T
    return normalized(out)


@pytest.mark.parametrize("backend", ["reference", "chunked", "auto"])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_fast_weight_memory(length, backend):
    q, k, v = (torch.randn(2, n, 2, d, dtype=torch.float64) for n, d in ((3, 4), (length, 4), (length, 5)))
    inputs = q, k, v, torch.rand(2, length, 2, dtype=torch.float64)
    found = fast_weight_memory(*inputs, backend=backend)
    assert error(found, naive_fast_weight_memory(*(x.numpy() for x in inputs))) <= TOLERANCES["operator"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point, solved",
    [
        (Point(1, "softmax", 8), True),
        (Point(1, "dpfp,d-dot=128", 8), True),
        (Point(2, "dpfp,d-dot=128", 8), False),
        (Point(2, "dpfp,d-dot=128,update-rule=delta", 8), True),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_learns(point, solved):
    """As in the paper, but smaller: all models solve the task, except the sum rule on repeated keys."""
    record = train(point, max_steps=800)
    assert record["steps"] == 100 * len(record["losses"])
    assert record["best_loss"] == pytest.approx(min(record["losses"]), abs=1e-6)
    assert (record["stop"] == "solved") == (record["losses"][-1] <= 0.001) == solved
    assert all(loss > 0.001 for loss in record["losses"][:-1])
    assert solved or record["best_loss"] > 0.02

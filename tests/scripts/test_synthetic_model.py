"""Compares the retrieval model with its equations in plain loops, and tests that it learns."""

import numpy as np
import pytest
import torch

from scripts.experiments.synthetic import task
from scripts.experiments.synthetic.fast_weight_memory import fast_weight_memory
from scripts.experiments.synthetic.model import RetrievalModel
from scripts.experiments.synthetic.rows import MODELS, Point, Variant
from scripts.experiments.synthetic.training import train
from tests import naive
from tests.tolerances import TOLERANCES, assert_close, error

S, ROWS = 5, 3
# (normalize_features, normalize_output) of each rule, as in the authors' synthetic experiments
NORMALIZERS = {"sum": (False, True), "delta": (True, False), "gated": (False, True)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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


def expected(model, batch):
    """Computes the model's output from its parameters in numpy."""
    parameters = {name: x.detach().numpy() for name, x in model.named_parameters()}
    onehot = np.eye(model.S)[batch.values.numpy()]
    pairs = np.concatenate([onehot, parameters["embedding"][batch.keys.numpy()]], -1)
    k = pairs @ parameters["to_key.weight"].T + parameters["to_key.bias"]
    q = parameters["embedding"][batch.queries.numpy()] @ parameters["to_query.weight"].T + parameters["to_query.bias"]
    q, k, v = q[:, :, None], k[:, :, None], onehot[:, :, None]
    variant = model.variant
    if variant.rule is None:
        weights = np.exp(np.einsum("bthd,bshd->bts", q, k) / 8)
        return (weights / weights.sum(-1, keepdims=True)) @ onehot
    beta = None
    if variant.rule != "sum":
        beta = sigmoid(pairs @ parameters["to_beta.weight"].T + parameters["to_beta.bias"])
    if variant.feature_map == "tanh":
        return naive_fast_weight_memory(np.tanh(q), np.tanh(k), v, beta)[:, :, 0]
    if variant.feature_map == "favor":
        phi = naive.favor(model.phi.training_projection.double().numpy(), 1.0)
    else:
        phi = naive.elu if variant.feature_map == "elu" else naive.dpfp(variant.parameter)
    if variant.rule == "fwm":
        return naive_fast_weight_memory(*(np.apply_along_axis(phi, -1, x) for x in (q, k)), v, beta)[:, :, 0]
    features, output = NORMALIZERS[variant.rule]
    options = dict(phi=phi, causal=False, normalize_features=features, normalize_output=output, eps=1e-6)
    return naive.attend(variant.rule, q, k, v, beta, **options)[0][:, :, 0]


@pytest.mark.parametrize("name", dict.fromkeys([*MODELS[1], *MODELS[2]]))
def test_output_of_every_model(name):
    if name.startswith("favor"):
        name = f"favor8-{name.partition('-')[2]}"
    model = RetrievalModel(Variant.of(name), S).double()
    batch = task.training_batch(ROWS, S, True, torch.Generator().manual_seed(1))
    found = model(batch.keys, batch.values, torch.arange(S).expand(ROWS, S))
    batch = batch._replace(queries=torch.arange(S).expand(ROWS, S))
    assert found.shape == (ROWS, S, S)
    assert_close(found, expected(model, batch), "operator")


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
        (Point(1, "dpfp1-sum", 8), True),
        (Point(2, "dpfp1-sum", 8), False),
        (Point(2, "dpfp1-delta", 8), True),
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


def test_ends_after_11_evaluations_without_progress(monkeypatch):
    from scripts.experiments.synthetic import training

    def losses(*values):
        monkeypatch.setattr(training, "evaluations", lambda *_: iter(values))
        return train(Point(1, "elu-sum", 20))

    worse = [0.4] * 3 + [float("nan")] * 8
    record = losses(0.5, 0.3, *worse, 0.0)
    assert (record["stop"], record["steps"], record["best_step"]) == ("no progress", 1300, 200)
    assert record["losses"][2:] == [0.4] * 3 + [None] * 8
    assert losses(0.5, 0.3, *worse[:-1], 0.2, 0.001, 0.0)["stop"] == "solved"
    never = losses(*[float("nan")] * 20)
    assert (never["stop"], never["steps"], never["best_loss"]) == ("no progress", 1100, None)

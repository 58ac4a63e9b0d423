"""The paper's appendix (Schlag, Irie and Schmidhuber 2021), executed on the package."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map
from tests.requirements import TESTED, serves
from tests.tolerances import assert_close

pytestmark = pytest.mark.parametrize("backend", TESTED)


def test_a1_remove_and_insert_is_the_delta_form(backend):
    """Eq. 23, W - v_old k^T + (beta v + (1 - beta) v_old) k^T, step by step, equals Eq. 24, the operator."""
    q, k, v, beta = (torch.randn(2, 20, 2, *shape, dtype=torch.float64) for shape in ((4,), (4,), (3,), ()))
    beta = torch.sigmoid(beta)
    phi = build_feature_map("dpfp", 4, nu=2)
    features_q, features_k = (phi(x) / phi(x).sum(-1, keepdim=True) for x in (q, k))
    W = torch.zeros(2, 2, 16, 3, dtype=torch.float64)
    outputs = []
    for t in range(q.shape[1]):
        key, share = features_k[:, t], beta[:, t, :, None]
        v_old = (W * key[..., None]).sum(-2)
        v_new = share * v[:, t] + (1 - share) * v_old
        W = W - key[..., None] * v_old[..., None, :] + key[..., None] * v_new[..., None, :]
        outputs.append((W * features_q[:, t, :, :, None]).sum(-2))
    out, state = ops.delta_rule(q, k, v, beta, feature_map=phi, eps=0.0, backend=backend, return_state=True)
    assert_close(out, torch.stack(outputs, 1), "operator")
    assert_close(state.W, W, "operator")


def _one_write(k, v, beta, W, normalize_features, backend):
    k, v = (torch.tensor(x, dtype=torch.float64).reshape(1, 1, 1, -1) for x in (k, v))
    _, state = ops.delta_rule(
        k, k, v, torch.full((1, 1, 1), beta, dtype=torch.float64), normalize_features=normalize_features, eps=0.0,
        initial_state=(W, None), backend=backend,
    )  # fmt: skip
    return state.W


def test_a2_features_that_sum_to_one_balance_write_and_remove(backend):
    """One row of W is w everywhere: with sum 1 it reads w, so what goes in is what comes out.

    Then every write moves the stored value by beta (v - w) times the feature, and the total over the features by
    exactly beta (v - w). Without normalisation the read value is w times the sum, and the balance is lost.
    """
    w, value, beta = 2.0, 5.0, 0.5
    W = torch.full((1, 1, 4, 1), w, dtype=torch.float64)
    keys = [1.0, 3.0, 0.0, 4.0]
    balanced = _one_write(keys, [value], beta, W, True, backend) - W
    assert_close(balanced.sum(), torch.tensor(beta * (value - w), dtype=torch.float64), "rounding")
    assert_close(_one_write(keys, [w], beta, W, True, backend), W, "rounding")
    unbalanced = _one_write(keys, [w], beta, W, False, backend)
    assert unbalanced.sum() < 0 < W.sum()


def test_b_the_delta_rule_leaves_orthogonal_associations_intact(backend):
    """After (k_1, v_1), a write under an orthogonal k_2 with beta = 1 keeps v_1; the gated rule (Eq. 52) erases it."""
    basis = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    k = basis[:2].reshape(1, 2, 1, 4)
    v = torch.randn(1, 2, 1, 3, dtype=torch.float64)
    ones = torch.ones(1, 2, 1, dtype=torch.float64)
    gated_backend = backend if serves(backend, "gated") else "auto"
    options = dict(causal=False, normalize_features=False, normalize_output=False)
    kept, _ = ops.delta_rule(k, k, v, ones, backend=backend, **options)
    assert_close(kept, v, "rounding")
    erased, _ = ops.gated_rule(k, k, v, ones, backend=gated_backend, **options)
    assert_close(erased[:, 0], torch.zeros(1, 1, 3, dtype=torch.float64), "rounding")
    assert_close(erased[:, 1], v[:, 1], "rounding")
    # With beta < 1 the delta rule still keeps all it had of v_1, the gated rule (1 - beta) of it.
    halves = ones / 2
    assert_close(ops.delta_rule(k, k, v, halves, backend=backend, **options)[0], v / 2, "rounding")
    assert_close(ops.gated_rule(k, k, v, halves, backend=gated_backend, **options)[0][:, 0], v[:, 0] / 4, "rounding")

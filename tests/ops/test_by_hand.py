"""Examples that can be checked on paper, and closed forms: the beginning of the chain of trust."""

from functools import partial

import numpy as np
import pytest
import torch

from fwp_fairseq.ops import GATES
from tests import naive
from tests.ops.cases import OPERATORS
from tests.requirements import TESTED, serves
from tests.tolerances import assert_close

# Two keys along the axes and one between them; values are plain numbers.
KEYS = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
VALUES = [[2.0], [3.0], [4.0], [5.0]]
HALF = [0.5, 0.5, 0.5, 0.5]

# rule, normalize_output, queries, expected outputs, expected W (d_dot, 1)
BY_HAND = {
    # W: 2,0 | 2,3 | 6,3 | 11,8
    "sum": ("sum", False, KEYS, [2, 3, 6, 19], [[11], [8]]),
    # divided by z.q: z = 1,0 | 1,1 | 2,1 | 3,2
    "sum-attention": ("sum", True, KEYS, [2, 3, 3, 19 / 5], [[11], [8]]),
    # W_1: 0 + (2-0)/2 = 1,0 | 1,1.5 | 1+(4-1)/2 = 2.5,1.5 | old = 4, (5-4)/2 = 0.5 on both: 3,2
    "delta": ("delta", False, KEYS, [1, 1.5, 2.5, 5], [[3], [2]]),
    # old values: 0 | 0/0 -> 0 | 1/1 | (2.5+1.5)/(2+1) = 4/3, step (5-4/3)/2 = 11/6; z as for sum-attention
    "delta-attention": ("delta", True, KEYS, [1, 1.5, 1.25, (4 + 11 / 3) / 5], [[2.5 + 11 / 6], [1.5 + 11 / 6]]),
    # alpha = 1/2, beta = 1/2. W: 1,0 | .5,1.5 | decayed .25,.75, + (4-.25)/2 on the first: 2.125,.75 | 1.0625,.375,
    # + (5-1.4375)/2 = 1.78125 on both: 2.84375,2.15625
    "gated_delta": ("gated_delta", False, KEYS, [1, 1.5, 2.125, 5], [[2.84375], [2.15625]]),
    # z before each write: 0,0 | .5,0 | .25,.5 | .625,.25. Old: 0 | 0/0 -> 0 | .25/.25 = 1, step 1.5: 1.75,.75 | of
    # .875,.375: 1.25/.875 = 10/7, step 25/14: .875+25/14, .375+25/14. z after: 1.625,1.25
    "gated_delta-attention": (
        "gated_delta",
        True,
        KEYS,
        [1, 1.5, 1.75 / 1.25, (1.25 + 25 / 7) / 2.875],
        [[0.875 + 25 / 14], [0.375 + 25 / 14]],
    ),
    # W: 1,0 | .5,1.5 | 2.25,.75 | 3.625,2.875
    "gated": ("gated", False, KEYS, [1, 1.5, 2.25, 6.5], [[3.625], [2.875]]),
    # z: .5,0 | .25,.5 | .625,.25 | .8125,.625
    "gated-attention": ("gated", True, KEYS, [2, 3, 3.6, 6.5 / 1.4375], [[3.625], [2.875]]),
}


def _single(rows, width):
    return torch.tensor(rows, dtype=torch.float64).reshape(1, len(rows), 1, width)


def _given(rule, q, k, v, strength):
    """The same number for every strength that the rule takes."""
    return q, k, v, *(strength for _ in GATES[rule])


def _naive(rule, *tensors, **options):
    return naive.attend(rule, *(x.numpy() for x in _given(rule, *tensors)), **options)


def _package(name, rule, *tensors, **options):
    backend = name if serves(name, rule) else "auto"
    out, state = OPERATORS[rule](*_given(rule, *tensors), backend=backend, return_state=True, **options)
    return out, state.W, state.z


@pytest.fixture(params=["naive", *TESTED])
def implementation(request):
    return _naive if request.param == "naive" else partial(_package, request.param)


@pytest.mark.parametrize("name", BY_HAND)
def test_four_steps(implementation, name):
    rule, normalize_output, queries, outputs, weights = BY_HAND[name]
    out, W, _ = implementation(
        rule,
        _single(queries, 2),
        _single(KEYS, 2),
        _single(VALUES, 1),
        torch.tensor(HALF, dtype=torch.float64).reshape(1, 4, 1),
        causal=True,
        normalize_features=False,
        normalize_output=normalize_output,
        eps=0.0,
    )
    assert_close(out, np.reshape(np.array(outputs, dtype=float), (1, 4, 1, 1)), "rounding")
    assert_close(W, np.array(weights, dtype=float).reshape(1, 1, 2, 1), "rounding")


@pytest.mark.parametrize(
    "normalize_output, eps, q, k, v, y, expected",
    [
        # k = (3, 1) becomes (3/4, 1/4), q = (1, 1) becomes (1/2, 1/2): y = 8 (3/8 + 1/8).
        (False, 0.0, [1, 1], [3, 1], 8, 4.0, [6.0, 2.0]),
        # Features (1, 3) / (4 + 1) = (1/5, 3/5); W = 10 (1/5, 3/5); y = 10 (2/5) / (2/5 + 1), as z.q = 2/5.
        (True, 1.0, [1, 3], [1, 3], 10, 4 / 1.4, [2.0, 6.0]),
    ],
)
def test_features_divided_by_their_sum_and_eps(implementation, normalize_output, eps, q, k, v, y, expected):
    out, W, _ = implementation(
        "sum", _single([q], 2), _single([k], 2), _single([[v]], 1), None,
        causal=True, normalize_features=True, normalize_output=normalize_output, eps=eps,
    )  # fmt: skip
    assert_close(out, np.full((1, 1, 1, 1), y), "rounding")
    assert_close(W, np.array(expected).reshape(1, 1, 2, 1), "rounding")


def test_reading_is_after_writing_when_causal_and_after_everything_when_not(implementation):
    arguments = ("sum", _single([[1]] * 3, 1), _single([[1]] * 3, 1), _single([[1], [10], [100]], 1), None)
    options = dict(normalize_features=False, normalize_output=False, eps=0.0)
    causal, _, _ = implementation(*arguments, causal=True, **options)
    everything, _, _ = implementation(*arguments, causal=False, **options)
    assert_close(causal.reshape(-1), np.array([1.0, 11.0, 111.0]), "rounding")
    assert_close(everything.reshape(-1), np.array([111.0, 111.0, 111.0]), "rounding")


def test_one_key_again_and_again_is_a_geometric_series(implementation):
    """One unit key and value 1: delta and gated rule both hold 1 - (1 - beta)^t, the sum rule t."""
    steps, beta = 150, 0.1
    ones = _single([[1.0]] * steps, 1)
    shares = torch.full((1, steps, 1), beta, dtype=torch.float64)
    t = np.arange(1, steps + 1)
    for rule, expected in {"sum": t, "delta": 1 - (1 - beta) ** t, "gated": 1 - (1 - beta) ** t}.items():
        out, _, _ = implementation(
            rule, ones, ones, ones, shares, causal=True, normalize_features=False, normalize_output=False, eps=0.0
        )
        assert_close(out.reshape(-1), expected.astype(float), "operator")


def test_orthonormal_keys_with_full_strength_are_a_dictionary(implementation):
    """beta = 1: the last value written under a key is what the key returns, exactly."""
    keys = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    out, _, _ = implementation(
        "delta", _single([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 3), _single(keys, 3), _single([[1], [2], [3], [4], [5]], 1),
        torch.ones(1, 5, 1, dtype=torch.float64),
        causal=False, normalize_features=False, normalize_output=False, eps=0.0,
    )  # fmt: skip
    assert_close(out.reshape(-1), np.array([5.0, 4.0, 3.0]), "rounding")


def test_noncausal_sum_rule_is_a_weighted_mean(implementation):
    """The quadratic form: weights phi(q).phi(k), normalised over the sources."""
    rng = np.random.default_rng(0)
    q, k, v = (torch.tensor(rng.random((2, length, 3, 4))) for length in (5, 7, 7))
    out, _, _ = implementation(
        "sum", q, k, v, None, causal=False, normalize_features=False, normalize_output=True, eps=0.0
    )
    gram = np.einsum("bthd,bshd->bhts", q.numpy(), k.numpy())
    expected = np.einsum("bhts,bshd->bthd", gram / gram.sum(-1, keepdims=True), v.numpy())
    assert_close(out, expected, "rounding")

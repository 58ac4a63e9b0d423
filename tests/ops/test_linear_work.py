"""The work of every backend, rule and recurrence is linear in the length, forward and backward."""

import math
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.ops import GATES, RULES
from tests.ops.cases import OPERATORS

LENGTHS = 256, 512  # both are many chunks


class Touched(TorchDispatchMode):
    """Counts the numbers that operators of torch write: the elements of their results that are no views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor) and not x._is_view():
                self.count += x.numel()
        return result


def rows(length: int, *sizes: int) -> torch.Tensor:
    return torch.rand(1, length, *sizes, requires_grad=True)


def of_a_rule(rule: str, backend: str, causal: bool, length: int) -> torch.Tensor:
    phi = build_feature_map("elu", 4)
    strengths = (rows(length, 2) for _ in GATES[rule])
    q, k, v = (rows(length, 2, 4) for _ in range(3))
    return OPERATORS[rule](q, k, v, *strengths, feature_map=phi, causal=causal, backend=backend)[0]


def of_a_recurrence(operator, gates: int, backend: str, length: int) -> torch.Tensor:
    return operator(*(rows(length, gates, 4) for _ in range(3)), rows(length, gates), backend=backend)[0]


def of_a_window(backend: str, length: int) -> torch.Tensor:
    q, k, v = (rows(length, 2, 4) for _ in range(3))
    return ops.read_window(q, k, v, rows(length, 2, 5), torch.rand(2, 4), torch.rand(2), size=8, backend=backend)


def work(compute, length: int) -> tuple[int, int]:
    """Numbers written forward and backward."""
    with Touched() as forward:
        out = compute(length)
    with Touched() as backward:
        out.sum().backward()
    return forward.count, backward.count


def check(compute) -> None:
    short, long = (work(compute, length) for length in LENGTHS)
    for name, once, twice in zip(("forward", "backward"), short, long, strict=True):
        assert once > 0 and math.isclose(twice / once, 2, rel_tol=0.1), f"{name}: {once} numbers, then {twice}"


BACKENDS = ["reference", "chunked", pytest.param("native", marks=pytest.mark.needs("native"))]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rules(backend, rule, causal):
    check(lambda length: of_a_rule(rule, backend, causal, length))


@pytest.mark.parametrize(
    "compute", [partial(of_a_recurrence, ops.recur, 2), partial(of_a_recurrence, ops.recur_lstm, 6), of_a_window]
)
@pytest.mark.parametrize("backend", [BACKENDS[0], BACKENDS[2]])
def test_recurrences_and_windows(backend, compute):
    check(lambda length: compute(backend, length))


def test_slices_in_a_loop_are_noticed():
    def compute(length):
        x = rows(length, 4)
        return torch.stack([x[:, t] for t in range(length)])

    with pytest.raises(AssertionError, match="backward"):
        check(compute)

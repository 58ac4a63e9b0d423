"""The recurrences' CUDA kernels on the shim against the operators of the CPU in float64; races.py watches them."""

import pytest
import torch
from torch import Tensor

from benchmarks.gate import CUDA
from tests.cuda import recurrence_kernels as shim_operators

pytestmark = [pytest.mark.slow, pytest.mark.needs("native")]
LIMIT = CUDA["float32"]
PADS = [[True, False, True, False, False, True, True], [False] * 6 + [True]]


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], limit: float) -> None:
    for name, a in expected.items():
        b = found[name].double()
        error = (a - b).square().mean().sqrt() / max(a.square().mean().sqrt().item(), 1e-3)
        assert error <= limit, f"{name}: error {error:.2e}, at most {limit:.2e}"


def run(operators, name: str, arguments: list, cotangents: list, **options) -> tuple[dict, dict]:
    """Results and gradients by name, of an operator and of its backward given these results."""
    found = getattr(operators, name)(*arguments, **options)
    if name == "recur_lstm":
        names = ("out", "R", "h", "c", "cells", "gates", "written")
        out, last, _, _, cells, gates, written = found
        _, k, v, beta, pads, _, first_h, first_c = arguments
        kept = (out, cells, gates, last, written, k, v, beta, pads, first_h, first_c)
    else:
        names = ("out", "R", "y", "written")
        out, last, _, written = found
        _, k, v, beta, pads, _, first_y = arguments
        kept = (out, last, written, k, v, beta, pads, first_y)
    gradients = getattr(operators, f"{name}_backward")(*cotangents, *kept, **options)
    return dict(zip(names, found, strict=False)), {str(number): x for number, x in enumerate(gradients)}


def case(name: str, d: int, mask: bool, state: bool) -> tuple[list, list]:
    """Arguments and cotangents, exact in float32; the first rows in fairseq's order, time first."""
    B, L, H = 2, 7, 2
    heads = 3 * H if name == "recur_lstm" else H

    def random(*shape):
        return torch.randn(*shape)

    first = random(L, B, heads, d).transpose(0, 1)
    pads = torch.tensor(PADS) if mask else None
    matrix, *vectors = random(B, heads, d, d) / d**0.5, *(random(B, H, d) for _ in range(1 + (name == "recur_lstm")))
    states = [matrix, *vectors] if state else [None] * (1 + len(vectors))
    k, v, beta = random(B, L, heads, d).softmax(-1), random(B, L, heads, d), torch.rand(B, L, heads)
    arguments = [first, k, v, beta, pads, *states]
    return arguments, [random(B, L, H, d), *(None if x is None else torch.randn_like(x) for x in states)]


def double(given: list) -> list:
    return [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("name", ["recur", "recur_lstm"])
@pytest.mark.parametrize("d, mask, state", [(1, False, True), (3, True, True), (8, True, False), (16, True, True),
                                            (20, True, True), (40, False, False), (64, True, True), (100, True, True),
                                            (128, False, True)])  # fmt: skip
def test_values_and_gradients(d, mask, state, name, schedule):
    """Widths at and beyond whole warps; with masks, initial states and gradients of the last state, and without."""
    arguments, cotangents = case(name, d, mask, state)
    expected = run(torch.ops.fwp, name, double(arguments), double(cotangents))
    found = run(shim_operators, name, arguments, cotangents, schedule=schedule)
    for mine, theirs, limit in zip(found, expected, LIMIT, strict=True):
        assert_near(mine, theirs, limit)


@pytest.mark.parametrize("name", ["recur", "recur_lstm"])
def test_wider_matrices_are_refused(name):
    arguments, _ = case(name, 129, False, False)
    with pytest.raises(RuntimeError, match="d is larger than the registers of a block have room for"):
        getattr(shim_operators, name)(*arguments)

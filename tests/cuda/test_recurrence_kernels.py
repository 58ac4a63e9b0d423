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


def run(operators, name: str, arguments: list, cotangents: list, net: bool, **options) -> tuple[dict, dict]:
    """Results and gradients by name, of an operator and of its backward given these results."""
    found = getattr(operators, name)(*arguments, **options)
    out, last, _, written, *fed = found
    if net:
        _, weight, pads, _, first_y, *numbers = arguments
        inputs = (*fed, weight, pads, first_y, *numbers)
    else:
        _, k, v, beta, pads, _, first_y = arguments
        inputs = (k, v, beta, pads, first_y)
    gradients = getattr(operators, f"{name}_backward")(*cotangents, out, last, written, *inputs, **options)
    values = dict(zip(("out", "R", "y", "written", "fed"), found, strict=False))
    return values, {str(number): x for number, x in enumerate(gradients)}


def case(net: bool, d: int, mask: bool, state: bool) -> tuple[list, list]:
    """Arguments and cotangents, exact in float32; the first rows in fairseq's order, time first."""
    B, L, H = 2, 7, 2

    def random(*shape):
        return torch.randn(*shape)

    first = random(L, B, H, 3 * d + 1 if net else d).transpose(0, 1)
    pads = torch.tensor(PADS) if mask else None
    states = [random(B, H, d, d) / d**0.5, random(B, H, d)] if state else [None, None]
    if net:
        arguments = [first, random(H, d, 3 * d + 1) / d**0.5, pads, *states, 30.0, 1e-6]
    else:
        arguments = [first, random(B, L, H, d).softmax(-1), random(B, L, H, d), torch.rand(B, L, H), pads, *states]
    cotangents = [random(B, L, H, d), *([random(B, H, d, d), random(B, H, d)] if state else [None, None])]
    return arguments, cotangents


def double(given: list) -> list:
    return [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("net", [False, True], ids=["recur", "recur_net"])
@pytest.mark.parametrize("d, mask, state", [(1, False, True), (8, True, False), (20, True, True), (40, False, False),
                                            (64, True, True), (100, True, True), (128, False, True)])  # fmt: skip
def test_values_and_gradients(d, mask, state, net, schedule):
    """Widths at and beyond whole warps; with masks, initial states and gradients of the last state, and without."""
    arguments, cotangents = case(net, d, mask, state)
    name = "recur_net" if net else "recur"
    expected = run(torch.ops.fwp, name, double(arguments), double(cotangents), net)
    found = run(shim_operators, name, arguments, cotangents, net, schedule=schedule)
    for mine, theirs, limit in zip(found, expected, LIMIT, strict=True):
        assert_near(mine, theirs, limit)


def test_wider_matrices_are_refused():
    arguments, _ = case(False, 129, False, False)
    with pytest.raises(RuntimeError, match="d is larger than the registers of a block have room for"):
        shim_operators.recur(*arguments)

"""The recurrences through the glue, from Python's choice of the compiled loop on: against the loops in float64."""

import itertools

import pytest
import torch
from torch import Tensor

from tests.cuda.cases import OPCHECKS, assert_near, with_gradients
from tests.cuda.test_glue import LAYOUTS
from tests.ops.test_recurrence import OPERATORS, PADS, STATES
from tests.pairs import covering
from tests.tolerances import CUDA

pytestmark = pytest.mark.needs("native", "cuda")


BATCH, LENGTH = PADS.shape
NAMES = pytest.mark.parametrize("name", STATES)


def make(name: str, d=5, batch=BATCH, length=LENGTH, heads=3, state=True) -> dict[str, Tensor]:
    """The tensors of a call, by name; exact in float32. The Delta LSTM has three gates' heads for each head."""
    gates = 3 * heads if name == "recur_lstm" else heads

    x = {row: torch.randn(batch, length, gates, d) for row in "zkv"} | {"beta": torch.rand(batch, length, gates)}
    x["k"] = x["k"].softmax(-1)
    matrix, *vectors = STATES[name]
    states = {matrix: torch.randn(batch, gates, d, d)} | {vector: torch.randn(batch, heads, d) for vector in vectors}
    return x | (states if state else {})


def raw(name: str, x: dict[str, Tensor], pads: Tensor | None = None) -> tuple:
    """The operator, and its arguments in the order of its schema."""
    given = [*(x[row] for row in ("z", "k", "v", "beta")), pads, *(x.get(state) for state in STATES[name])]
    return getattr(torch.ops.fwp, name).default, given


def in_pieces(name: str, x: dict[str, Tensor], pads: Tensor | None, backend: str, cuts: list[int]) -> tuple:
    """A call for the positions between any two cuts, from the state after the one before."""
    outputs = []
    for first, last in itertools.pairwise(cuts):
        piece = {key: y[:, first:last] if key in (*"zkv", "beta") else y for key, y in x.items()}
        mask = None if pads is None else pads[:, first:last]
        out, *states = OPERATORS[name](**piece, key_padding_mask=mask, backend=backend)
        outputs.append(out)
        x = x | dict(zip(STATES[name], states, strict=True))
    return torch.cat(outputs, 1), *states


def results(
    name: str, x, pads, backend, *, cuda=True, states=True, layout=Tensor.contiguous, cuts=(0, LENGTH)
) -> dict[str, Tensor]:
    """Values and gradients by name. ``states``: whether the loss depends on the last state too."""
    dtype, device = (None, "cuda") if cuda else (torch.float64, "cpu")
    given = {key: layout(y.to(device, dtype or y.dtype)).requires_grad_() for key, y in x.items()}
    out, *last = in_pieces(name, given, None if pads is None else layout(pads.to(device)), backend, cuts)
    last = {f"last {state}": y if states else y.detach() for state, y in zip(STATES[name], last, strict=True)}
    return with_gradients({"out": out} | last, given, layout)


def assert_agree(name: str, x, pads=None, *, looser=1, **options) -> None:
    cut = {option: options.pop(option) for option in ("layout", "cuts") if option in options}
    expected = results(name, x, pads, "reference", cuda=False, **options)
    found = results(name, x, pads, "native", **options, **cut)
    assert {y.dtype for y in found.values()} == {torch.float32}
    assert_near(found, expected, CUDA["float32"], looser)


@NAMES
@pytest.mark.parametrize("d, mask, state", [(1, True, True), (3, True, True), (16, True, True), (20, False, False),
                                            (64, True, False), (128, False, True)])  # fmt: skip
def test_values_and_gradients(name, d, mask, state):
    """With masks, initial states and gradients of the last state, and without."""
    assert_agree(name, make(name, d, heads=2, state=state), PADS if mask else None, states=state)


@NAMES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(name, layout):
    """Of every input, state and mask, and of what comes in for the backward."""
    assert_agree(name, make(name, 20), PADS, layout=LAYOUTS[layout])


@NAMES
def test_states_are_carried_from_call_to_call(name):
    """With gradients, through calls of no, some and one position."""
    assert_agree(name, make(name), PADS, cuts=[0, 0, 3, 6, 7], looser=2)


@NAMES
@pytest.mark.parametrize("sizes", [(0, 7, 3, 5), (2, 0, 3, 5), (2, 7, 0, 5), (0, 7, 3, 200)], ids=str)
def test_nothing_to_write(name, sizes):
    """Where there is no head of any row, any d is served."""
    batch, length, heads, d = sizes
    x = make(name, d, batch, length, heads)
    operator, given = raw(name, {key: y.cuda() for key, y in x.items()})
    out, *states = operator(*given)[: 1 + len(STATES[name])]
    assert out.shape == (batch, length, heads, d)
    for key, state in zip(STATES[name], states, strict=True):
        assert state.shape == x[key].shape
        assert length or torch.equal(state.cpu(), x[key])
    if length == 0:
        assert all(y.isfinite().all() for y in results(name, x, None, "native", cuts=[0, 0]).values())


@NAMES
@pytest.mark.parametrize("state, check", covering([False, True], OPCHECKS))
def test_opcheck(name, state, check):
    x = {key: y.cuda() for key, y in make(name, 4, state=state).items()}
    operator, given = raw(name, {key: y.requires_grad_() for key, y in x.items()}, PADS.cuda() if state else None)
    torch.library.opcheck(operator, tuple(given), test_utils=check)
    given = [y.detach() if isinstance(y, Tensor) else y for y in given]
    out, last, *found = operator(*given)
    rows, (pads, *states) = given[1:4], given[4:]
    gradients = [torch.ones_like(out), *(None if x is None else torch.ones_like(x) for x in states)]
    *kept, written = found[len(states) - 1 :] if name == "recur_lstm" else found[1:2]  # cells and gates
    backward = getattr(torch.ops.fwp, f"{name}_backward").default
    given = (*gradients, out, *kept, last, written, *rows, pads, *states[1:])
    torch.library.opcheck(backward, given, test_utils=check)

"""The recurrences of the Delta RNN and LSTM: compiled against the loop in PyTorch."""

import pytest
import torch
from torch import Tensor

from fwp_fairseq.ops import recur, recur_lstm
from tests.ops import instruction_sets
from tests.tolerances import assert_close

OPERATORS = {"recur": recur, "recur_lstm": recur_lstm}
STATES = {"recur": ("R", "y"), "recur_lstm": ("R", "h", "c")}
PADS = torch.tensor([[True, False, True, False, False, True, True], [False] * 6 + [True]])
ROWS = ("z", "k", "v", "beta")
each = pytest.mark.parametrize("name", OPERATORS)
needs_native = pytest.mark.needs("native")


def inputs(name, batch=2, length=7, heads=3, d=5, dtype=torch.float64, states=True, time_major=False):
    def random(*shape):
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    rows, gates = (length, batch) if time_major else (batch, length), 3 * heads if name == "recur_lstm" else heads
    z, k, v = (random(*rows, gates, d) for _ in range(3))
    beta = torch.rand(*rows, gates, dtype=dtype).requires_grad_()
    found = {"z": z, "k": k.softmax(-1).detach().requires_grad_(), "v": v, "beta": beta}
    if states:
        found |= {"R": random(batch, gates, d, d)} | {x: random(batch, heads, d) for x in STATES[name][1:]}
    return found


def results(name, x: dict, backend: str, pads=None, time_major=False) -> dict[str, Tensor]:
    """Values, and gradients of a product of them with fixed numbers."""
    given = {part: y.transpose(0, 1) if time_major and part in ROWS else y for part, y in x.items()}
    values = OPERATORS[name](**given, key_padding_mask=pads, backend=backend)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in values]
    total = sum((y * w).sum() for y, w in zip(values, weights, strict=True))
    gradients = torch.autograd.grad(total, list(x.values()))
    found = dict(zip(("out", *STATES[name]), values, strict=True))
    return found | {f"d{part}": g for part, g in zip(x, gradients, strict=True)}


def assert_agree(name, x: dict, **options) -> None:
    expected, found = results(name, x, "reference", **options), results(name, x, "native", **options)
    for part, y in expected.items():
        assert found[part].shape == y.shape, part
        assert_close(found[part], y, "operator")


def test_the_loop_of_the_lstm_is_the_equations():
    """Gate by gate, head by head, in the order that the heads have."""
    x = {name: y.detach() for name, y in inputs("recur_lstm").items()}
    out, *last = recur_lstm(**x, backend="reference")
    for b in range(2):
        for head in range(3):
            R, h, c = [x["R"][b, 3 * g + head].T for g in range(3)], x["h"][b, head], x["c"][b, head]
            for t in range(7):
                z, k, v = ([x[name][b, t, 3 * g + head] for g in range(3)] for name in "zkv")
                beta = [x["beta"][b, t, 3 * g + head] for g in range(3)]
                f = h.softmax(-1)
                R = [R[g] + beta[g] * torch.outer(v[g] - R[g] @ k[g], k[g]) for g in range(3)]
                u, i, o = (z[g] + R[g] @ f for g in range(3))
                c = i.sigmoid() * u + (1 - i.sigmoid()) * c
                h = o.sigmoid() * c
                assert_close(out[b, t, head], h, "rounding")
            for mine, theirs in zip(last, (R[0].T, h, c), strict=True):
                assert_close(mine[b, head], theirs, "rounding")


@each
@needs_native
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values_and_gradients(name, instruction_set):
    """Widths below, at and beyond whole vectors and groups of vectors; lengths of 0 and more."""
    with instruction_sets.chosen(instruction_set):
        for d in (1, 3, 8, 16, 17, 40, 64, 80):
            assert_agree(name, inputs(name, length=9, heads=2, d=d))
        for length in (1, 2):
            assert_agree(name, inputs(name, length=length))
        nothing = inputs(name, length=0)
        expected = OPERATORS[name](**nothing, backend="reference")
        for mine, theirs in zip(OPERATORS[name](**nothing, backend="native"), expected, strict=True):
            assert torch.equal(mine, theirs)
        assert_agree(name, inputs(name, states=False))
        assert_agree(name, inputs(name, time_major=True), time_major=True)
        assert_agree(name, inputs(name), pads=PADS)
        assert_agree(name, inputs(name, d=20), pads=torch.ones(2, 7, dtype=torch.bool))


@needs_native
def test_gates_at_their_ends():
    """Logits of hundreds, where exp of them is beyond any number, and gates that are 0 or 1."""
    x = inputs("recur_lstm", length=12, d=9)
    with torch.no_grad():
        x["z"][:, :, 3:] *= torch.logspace(-3, 3, 6, dtype=torch.float64)[:, None]
    assert x["z"].abs().max() > 800
    assert_agree("recur_lstm", x)
    single = {name: y.detach().float() for name, y in x.items()}
    for mine, theirs in zip(recur_lstm(**single, backend="native"), recur_lstm(**x), strict=True):
        assert_close(mine.double(), theirs, "float32")


@each
@needs_native
def test_gradcheck(name):
    x, operator = inputs(name, d=6), OPERATORS[name]
    small = inputs(name, 1, 3, 1, 3)
    assert torch.autograd.gradcheck(
        lambda *given: operator(**dict(zip(small, given, strict=True)), backend="native"), [*small.values()]
    )
    out, *_ = operator(**x, backend="native")
    (gradient,) = torch.autograd.grad(out.sum(), x["z"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()

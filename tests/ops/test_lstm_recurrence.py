"""The recurrence of the Delta LSTM: the compiled loop against the loop in PyTorch, what it keeps, what it refuses."""

import pytest
import torch
from torch import Tensor

from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.ops import lstm_recurrence
from fwp_fairseq.ops.lstm_recurrence import recur_lstm
from tests.ops import instruction_sets
from tests.served import served
from tests.tolerances import assert_close

needs_native = pytest.mark.needs("native")

PADS = torch.tensor([[True, False, True, False, False, True, True], [False] * 6 + [True]])
ROWS = ("z", "k", "v", "beta")


def inputs(batch=2, length=7, heads=3, d=5, dtype=torch.float64, states=True, time_major=False) -> dict[str, Tensor]:
    def random(*shape):
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    rows = (length, batch) if time_major else (batch, length)
    z, k, v = (random(*rows, 3 * heads, d) for _ in range(3))
    beta = torch.rand(*rows, 3 * heads, dtype=dtype).requires_grad_()
    found = {"z": z, "k": k.softmax(-1).detach().requires_grad_(), "v": v, "beta": beta}
    if states:
        found |= {"R": random(batch, 3 * heads, d, d), "h": random(batch, heads, d), "c": random(batch, heads, d)}
    return found


def results(x: dict, backend: str, pads=None, time_major=False) -> dict[str, Tensor]:
    """Values, and gradients of a product of them with fixed numbers."""
    given = {name: y.transpose(0, 1) if time_major and name in ROWS else y for name, y in x.items()}
    values = recur_lstm(**given, key_padding_mask=pads, backend=backend)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in values]
    total = sum((y * w).sum() for y, w in zip(values, weights, strict=True))
    gradients = torch.autograd.grad(total, list(x.values()))
    names = ("out", "last R", "last h", "last c")
    return dict(zip(names, values, strict=True)) | {f"d{n}": g for n, g in zip(x, gradients, strict=True)}


def assert_agree(x: dict, tolerance="operator", **options) -> None:
    expected, found = results(x, "reference", **options), results(x, "native", **options)
    for name, y in expected.items():
        assert found[name].shape == y.shape, name
        assert_close(found[name], y, tolerance)


def test_the_loop_is_the_equations():
    """Gate by gate, head by head, in the order that the heads have."""
    x = {name: y.detach() for name, y in inputs().items()}
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


@needs_native
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values_and_gradients(instruction_set):
    """Widths below, at and beyond whole vectors and groups of vectors; lengths of 0 and more."""
    with instruction_sets.chosen(instruction_set):
        for d in (1, 3, 8, 16, 17, 40, 64, 80):
            assert_agree(inputs(length=9, heads=2, d=d))
        for length in (1, 2):
            assert_agree(inputs(length=length))
        nothing = inputs(length=0)
        expected = recur_lstm(**nothing, backend="reference")
        for mine, theirs in zip(recur_lstm(**nothing, backend="native"), expected, strict=True):
            assert torch.equal(mine, theirs)
        assert_agree(inputs(states=False))
        assert_agree(inputs(time_major=True), time_major=True)
        assert_agree(inputs(), pads=PADS)
        assert_agree(inputs(d=20), pads=torch.ones(2, 7, dtype=torch.bool))


@needs_native
def test_gates_at_their_ends():
    """Logits of hundreds, where exp of them is beyond any number, and gates that are 0 or 1."""
    x = inputs(length=12, d=9)
    with torch.no_grad():
        x["z"][:, :, 3:] *= torch.logspace(-3, 3, 6, dtype=torch.float64)[:, None]
    assert x["z"].abs().max() > 800
    assert_agree(x)
    single = {name: y.detach().float() for name, y in x.items()}
    for mine, theirs in zip(recur_lstm(**single, backend="native"), recur_lstm(**x), strict=True):
        assert_close(mine.double(), theirs, "float32")


@needs_native
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, "operator"), (torch.float32, "float32")], ids=str)
def test_going_back_over_a_thousand_positions(dtype, tolerance):
    x = inputs(1, 1000, 1, 16, dtype, states=False)
    expected = results({name: y.detach().double().requires_grad_() for name, y in x.items()}, "reference")
    found = results(x, "native")
    for name, y in expected.items():
        assert_close(found[name].double(), y, tolerance)


@needs_native
def test_three_matrices_are_kept_for_the_backward():
    sizes, x = [], inputs(2, 50, 3, 8, states=False)

    def measure(y):
        sizes.append(y.numel())
        return y

    with torch.autograd.graph.saved_tensors_hooks(measure, lambda y: y):
        recur_lstm(**x, backend="native")
    matrices, rows = 2 * 9 * 8 * 8, 2 * 50 * 3 * 8
    # k, v, what was written and the gates of three heads a head, out and cells of one; beta.
    assert sum(size == matrices for size in sizes) == 1 and sum(sizes) <= matrices + 14 * rows + 2 * 50 * 9


@needs_native
def test_opcheck_and_gradcheck():
    x = inputs(d=4)
    arguments = [*(x[name] for name in ROWS), PADS, x["R"], x["h"], x["c"]]
    torch.library.opcheck(torch.ops.fwp.recur_lstm.default, arguments)
    arguments[5:] = [None] * 3
    torch.library.opcheck(torch.ops.fwp.recur_lstm.default, arguments)
    small = inputs(1, 3, 1, 3)
    assert torch.autograd.gradcheck(
        lambda *given: recur_lstm(*given[:4], R=given[4], h=given[5], c=given[6], backend="native"), [*small.values()]
    )
    out, *_ = recur_lstm(**x, backend="native")
    (gradient,) = torch.autograd.grad(out.sum(), x["z"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()


@needs_native
def test_refused():
    x = {name: y.detach() for name, y in inputs().items()}
    arguments = {**{name: x[name] for name in ROWS}, "pads": None, **{name: x[name] for name in ("R", "h", "c")}}
    two = {name: x[name][:, :, :8] for name in ROWS}
    for changes, message in (
        ({"z": x["z"][:, :3]}, r"fwp::recur_lstm: z is of shape \[2, 3, 9, 5\], expected \[2, 7, 9, 5\]"),
        ({"v": x["v"].float()}, "fwp::recur_lstm: v is of type Float"),
        ({"k": x["k"].half()}, "fwp::recur_lstm: k is of type Half, expected Float or Double"),
        ({"beta": x["beta"][..., :2]}, r"fwp::recur_lstm: beta is of shape \[2, 7, 2\]"),
        (two, "fwp::recur_lstm: k has 8 heads, expected those of three gates"),
        ({"R": x["R"][:, :3]}, r"fwp::recur_lstm: R is of shape \[2, 3, 5, 5\], expected \[2, 9, 5, 5\]"),
        ({"h": x["h"][..., :4]}, r"fwp::recur_lstm: h is of shape \[2, 3, 4\], expected \[2, 3, 5\]"),
        ({"c": x["c"].repeat(1, 3, 1)}, r"fwp::recur_lstm: c is of shape \[2, 9, 5\], expected \[2, 3, 5\]"),
        ({"pads": PADS[:, :6]}, "fwp::recur_lstm: key_padding_mask is of shape"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.ops.fwp.recur_lstm(*(arguments | changes).values())
    message = r"backend='native' cannot serve the recurrence of the Delta LSTM: .* meta tensors"
    with pytest.raises(NotImplementedError, match=message):
        recur_lstm(**{name: y.to("meta") for name, y in x.items()}, backend="native")


def test_without_the_library_the_loop_in_pytorch_serves(monkeypatch):
    monkeypatch.setattr(lstm_recurrence._Native, "unsupported_reasons", lambda call: ["none here"])
    x = inputs()
    for mine, theirs in zip(recur_lstm(**x), recur_lstm(**x, backend="chunked"), strict=True):
        assert torch.equal(mine, theirs)


def of_a_layer(layer, x, pads, state) -> list[Tensor]:
    """Values and gradients, of two calls with a state between them."""
    first, between = layer(x[:, :3], key_padding_mask=pads[:, :3], state=state)
    then, after = layer(x[:, 3:], key_padding_mask=pads[:, 3:], state=between)
    out = torch.cat([first, then], 1).masked_fill(pads[..., None], 0)
    found = [out, *(y for y in after if y is not None)]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64) for y in found]
    total = sum((y * weight).sum() for y, weight in zip(found, weights, strict=True))
    given = [y for y in state if y is not None]
    return [*found, *torch.autograd.grad(total, [x, *layer.parameters(), *given])]


@needs_native
@pytest.mark.parametrize("recurrent", ["none", "tanh"])
def test_a_layer_with_carried_states(recurrent):
    options = {"update_rule": "delta", "feature_map": "elu", "fast_net": "lstm", "recurrent": recurrent}
    layer, loop = (FastWeightAttention(8, 2, **options, **more).double() for more in ({}, {"backend": "reference"}))
    loop.load_state_dict(layer.state_dict())
    x = torch.randn(2, 7, 8, dtype=torch.float64, requires_grad=True)
    state = layer.nothing_written(2, x)
    state = state._replace(
        **{name: torch.randn_like(y).requires_grad_() for name, y in state._asdict().items() if y is not None}
    )
    counted = served.get(("reference", "cpu"), 0)
    found = of_a_layer(layer, x, PADS, state)
    assert served.get(("reference", "cpu"), 0) == counted
    for mine, theirs in zip(found, of_a_layer(loop, x, PADS, state), strict=True):
        assert_close(mine, theirs, "operator")

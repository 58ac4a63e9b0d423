"""The recurrences through the glue, from Python's choice of the compiled loop on: against the loops in float64."""

import itertools
import logging

import pytest
import torch
from torch import Tensor

from benchmarks.gate import CUDA
from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.ops import FastWeights, backends, recur_lstm, recurrence
from tests.cuda.test_glue import LAYOUTS
from tests.cuda.test_recurrence_kernels import assert_near
from tests.ops.cases import OPCHECKS
from tests.pairs import covering

pytestmark = pytest.mark.needs("native", "cuda")

PADS = torch.tensor([[True, False, True, False, False, True, True], [False] * 6 + [True]])
BATCH, LENGTH = PADS.shape
NUMBERS = {"largest": 1.0, "eps": 1e-6}  # so small that exp is clipped somewhere
NETS = pytest.mark.parametrize("net", [False, True], ids=["recur", "recur_net"])


def make(net: bool, d=5, batch=BATCH, length=LENGTH, heads=3, state=True) -> dict[str, Tensor]:
    """The tensors of a call, by name; exact in float32."""

    def random(*shape):
        return torch.randn(*shape)

    if net:
        x = {"parts": random(batch, length, heads, 3 * d + 1), "weight": random(heads, d, 3 * d + 1) / d**0.5}
    else:
        x = {name: random(batch, length, heads, d) for name in "zkv"} | {"beta": torch.rand(batch, length, heads)}
        x["k"] = x["k"].softmax(-1)
    states = {"W" if net else "R": random(batch, heads, d, d), "y": random(batch, heads, d)}
    return x | (states if state else {})


def loop(parts, weight, key_padding_mask, W, y, largest, eps) -> tuple[Tensor, Tensor, Tensor]:
    """What recur_net says it computes."""

    def phi(x):
        e = x.clamp(max=largest).exp()
        return e / (e.sum(-1, keepdim=True) + eps)

    (batch, length, heads, _), d = parts.shape, weight.shape[1]
    W = parts.new_zeros(batch, heads, d, d) if W is None else W
    y = parts.new_zeros(batch, heads, d) if y is None else y
    outputs = [parts.new_empty(batch, 0, heads, d)]
    for t in range(length):
        fed = parts[:, t] + torch.einsum("bhi,hij->bhj", y.tanh(), weight)
        q, k, v, b = fed.split([d, d, d, 1], -1)
        after = recurrence.delta(W, phi(k), v, b.squeeze(-1).sigmoid())
        pad = torch.zeros(batch, dtype=torch.bool) if key_padding_mask is None else key_padding_mask[:, t]
        W = torch.where(pad[:, None, None, None], W, after)
        out = recurrence.read(W, phi(q))
        y = torch.where(pad[:, None, None], y, out)
        outputs.append(out.unsqueeze(1))
    return torch.cat(outputs, 1), W, y


def call(net: bool, x: dict[str, Tensor], pads: Tensor | None, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    if not net:
        return recurrence.recur(**x, key_padding_mask=pads, backend=backend)
    given = {"W": None, "y": None, "key_padding_mask": pads} | x | NUMBERS
    return (loop if backend == "reference" else recurrence.recur_net)(**given)


def raw(net: bool, x: dict[str, Tensor], pads: Tensor | None = None) -> tuple:
    """The operator, and its arguments in the order of its schema."""
    names = ("parts", "weight") if net else ("z", "k", "v", "beta")
    states = x.get("W" if net else "R"), x.get("y")
    given = [*(x[name] for name in names), pads, *states, *(NUMBERS.values() if net else ())]
    return getattr(torch.ops.fwp, "recur_net" if net else "recur").default, given


def in_pieces(net: bool, x: dict[str, Tensor], pads: Tensor | None, backend: str, cuts: list[int]) -> tuple:
    """A call for the positions between any two cuts, from the state after the one before."""
    outputs = []
    for first, last in itertools.pairwise(cuts):
        piece = {name: y[:, first:last] if name in ("parts", *"zkv", "beta") else y for name, y in x.items()}
        out, matrix, y = call(net, piece, None if pads is None else pads[:, first:last], backend)
        outputs.append(out)
        x = x | {"W" if net else "R": matrix, "y": y}
    return torch.cat(outputs, 1), matrix, y


def results(
    net: bool, x, pads, backend, *, cuda=True, states=True, layout=Tensor.contiguous, cuts=(0, LENGTH)
) -> tuple[dict, dict]:
    """Values and gradients by name. ``states``: whether the loss depends on the last state too."""
    dtype, device = (None, "cuda") if cuda else (torch.float64, "cpu")
    given = {name: layout(y.to(device, dtype or y.dtype)).requires_grad_() for name, y in x.items()}
    pads = None if pads is None else layout(pads.to(device))
    values = dict(zip(("out", "last R", "last y"), in_pieces(net, given, pads, backend, cuts), strict=True))
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=generator) for y in values.values()]
    cotangents = [layout(g.to(device, y.dtype)) for g, y in zip(cotangents, values.values(), strict=True)]
    count = 3 if states else 1
    found = torch.autograd.grad(
        list(values.values())[:count], list(given.values()), cotangents[:count], materialize_grads=True
    )
    gradients = dict(zip(given, found, strict=True))
    for name, gradient in gradients.items():
        assert gradient.dtype == given[name].dtype and gradient.shape == given[name].shape, name
    return tuple({name: y.detach().cpu() for name, y in part.items()} for part in (values, gradients))


def assert_agree(net: bool, x, pads=None, *, looser=1, **options) -> None:
    cut = {name: options.pop(name) for name in ("layout", "cuts") if name in options}
    expected = results(net, x, pads, "reference", cuda=False, **options)
    counted = backends.served.get(("native", "cuda"), 0)
    found = results(net, x, pads, "native", **options, **cut)
    assert backends.served["native", "cuda"] > counted
    for mine, theirs, limit in zip(found, expected, CUDA["float32"], strict=True):
        assert_near(mine, theirs, looser * limit)


@NETS
@pytest.mark.parametrize("d, mask, state", [(1, True, True), (20, False, False), (64, True, False), (128, False, True)])
def test_values_and_gradients(net, d, mask, state):
    """With masks, initial states and gradients of the last state, and without."""
    assert_agree(net, make(net, d, heads=2, state=state), PADS if mask else None, states=state)


@NETS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(net, layout):
    """Of every input, state and mask, and of what comes in for the backward."""
    assert_agree(net, make(net, 20), PADS, layout=LAYOUTS[layout])


@NETS
def test_states_are_carried_from_call_to_call(net):
    """With gradients, through calls of no, some and one position."""
    assert_agree(net, make(net), PADS, cuts=[0, 0, 3, 6, 7], looser=2)


@NETS
@pytest.mark.parametrize("sizes", [(0, 7, 3, 5), (2, 0, 3, 5), (2, 7, 0, 5), (0, 7, 3, 200)], ids=str)
def test_nothing_to_write(net, sizes):
    """Where there is no head of any row, any d is served."""
    batch, length, heads, d = sizes
    x = make(net, d, batch, length, heads)
    operator, given = raw(net, {name: y.cuda() for name, y in x.items()})
    out, last, y, *_ = operator(*given)
    assert (
        out.shape == (batch, length, heads, d) and last.shape == (batch, heads, d, d) and y.shape == (batch, heads, d)
    )
    if length == 0:
        assert torch.equal(last.cpu(), x["W" if net else "R"]) and torch.equal(y.cpu(), x["y"])
        _, gradients = results(net, x, None, "native", cuts=[0, 0])
        assert all(gradient.isfinite().all() for gradient in gradients.values())


@NETS
@pytest.mark.parametrize("time_first", [False, True])
def test_outputs_have_the_order_of_dimensions_of_their_inputs(net, time_first):
    """fairseq's (T, B, C) goes on as a view, gradients too."""
    x = {name: y.cuda() for name, y in make(net).items()}
    rows = ("parts",) if net else (*"zkv", "beta")
    if time_first:
        x |= {name: x[name].transpose(0, 1).contiguous().transpose(0, 1) for name in rows}
    x = {name: y.requires_grad_() for name, y in x.items()}
    out, *_ = call(net, x, None, "native")
    gradients = torch.autograd.grad(out.square().sum(), [x[name] for name in rows])
    for a, b in zip(gradients, rows, strict=True):
        assert a.stride() == x[b].stride()
    assert (out.stride(1) > out.stride(0)) == time_first


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(dtype):
    x = {name: y.to(dtype) for name, y in make(False).items()}
    expected = recurrence.recur(**{name: y.double() for name, y in x.items()}, key_padding_mask=PADS)
    x = {name: y.cuda().requires_grad_() for name, y in x.items()}
    found = recurrence.recur(**x, key_padding_mask=PADS.cuda(), backend="native")
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.detach().cpu().double(), theirs, rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad(found[0].sum(), list(x.values()))
    assert all(gradient.dtype == dtype and gradient.isfinite().all() for gradient in gradients)


def layer(kind: str, **options) -> FastWeightAttention:
    nets = {"rnn": {"fast_net": "rnn", "feature_map": "elu"}, "net": {"recurrent": "tanh", "feature_map": "exp"}}
    torch.manual_seed(0)
    made = FastWeightAttention(16, 2, update_rule="delta", **nets[kind], **options)
    torch.nn.init.normal_(made.beta_proj.weight)
    return made


@pytest.mark.parametrize("kind", ["rnn", "net"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_choose_the_compiled_loop(kind, dtype):
    """Two calls, a state between them; in half precision too."""
    chosen, reference = layer(kind).to(dtype), layer(kind, backend="reference").to(dtype).double()
    x, counted = torch.randn(2, 7, 16).to(dtype), dict(backends.served)
    chosen.cuda()
    found, state = chosen(x[:, :4].cuda(), key_padding_mask=PADS[:, :4].cuda())
    after, state = chosen(x[:, 4:].cuda(), key_padding_mask=PADS[:, 4:].cuda(), state=state)
    served = {key: calls - counted.get(key, 0) for key, calls in backends.served.items() if calls > counted.get(key, 0)}
    assert served == {("native", "cuda"): 4 if kind == "rnn" else 2}  # of the Delta RNN, the delta rule as well
    expected, last = reference(x.double(), key_padding_mask=PADS)
    limit = {torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    out = torch.cat([found, after], 1).detach().cpu().double()
    assert ((out - expected)[~PADS].norm() / expected[~PADS].norm()).item() < limit
    assert ((state.W.detach().cpu().double() - last.W).norm() / last.W.norm()).item() < limit


@NETS
@pytest.mark.parametrize("state, check", covering([False, True], OPCHECKS))
def test_opcheck(net, state, check):
    x = {name: y.cuda() for name, y in make(net, 4, state=state).items()}
    operator, given = raw(net, {name: y.requires_grad_() for name, y in x.items()}, PADS.cuda() if state else None)
    torch.library.opcheck(operator, tuple(given), test_utils=check)
    given = [y.detach() if isinstance(y, Tensor) else y for y in given]
    out, last, _, written, *fed = operator(*given)
    rows, (pads, matrix, y, *numbers) = ([*fed, given[1]], given[2:]) if net else (given[1:4], given[4:])
    gradients = [torch.ones_like(out), *(None if x is None else torch.ones_like(x) for x in (matrix, y))]
    backward = getattr(torch.ops.fwp, f"recur{'_net' if net else ''}_backward").default
    torch.library.opcheck(backward, (*gradients, out, last, written, *rows, pads, y, *numbers), test_utils=check)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"z": torch.zeros(2, 3, 3, 5)}, r"z is of shape \[2, 3, 3, 5\], expected \[2, 7, 3, 5\]"),
        ({"k": torch.zeros(2, 7, 15)}, "k is of shape .*, expected 4 dimensions"),
        ({"k": torch.zeros(2, 7, 3, 5).double()}, "k is of type Double, expected Float on CUDA"),
        ({"k": torch.zeros(2, 7, 3, 5).half()}, "k is of type Half, expected Float on CUDA"),
        ({"v": torch.zeros(2, 7, 3, 5).double()}, "v is of type Double, expected Float"),
        ({"v": torch.zeros(2, 7, 3, 5), "here": "v"}, "v is on .*, expected "),
        ({"beta": torch.zeros(2, 7, 2)}, r"beta is of shape \[2, 7, 2\]"),
        ({"pads": torch.zeros(2, 6, dtype=torch.bool)}, "key_padding_mask is of shape"),
        ({"pads": PADS, "here": "pads"}, "key_padding_mask is on .*, expected "),
        ({"R": torch.zeros(3, 5, 5)}, "R is of shape"),
        ({"y": torch.zeros(2, 3, 4)}, "y is of shape"),
    ],
    ids=str,
)
def test_the_operator_names_what_is_wrong(changes, message):
    here = changes.get("here")
    changes = {name: y.cuda() if isinstance(y, Tensor) and name != here else y for name, y in changes.items()}
    changes.pop("here", None)
    operator, given = raw(False, {name: y.cuda() for name, y in make(False).items()})
    given = dict(zip(("z", "k", "v", "beta", "pads", "R", "y"), given, strict=True)) | changes
    with pytest.raises(ValueError, match=f"fwp::recur: .*{message}"):
        operator(*given.values())


@NETS
def test_types_and_widths_that_the_kernels_do_not_have(net, caplog):
    """The operator refuses them, so does the backend, and ``auto`` takes the loop and says so."""
    wide = r"d is 129, expected at most 128 on CUDA"
    for x, message, reason in (
        (make(net, 129, 1, 2, 1), wide, wide),
        (
            {name: y.double() for name, y in make(net).items()},
            "is of type Double, expected Float on CUDA",
            "the CUDA kernels of the recurrence do not compute in torch.float64",
        ),
    ):
        x = {name: y.cuda() for name, y in x.items()}
        operator, given = raw(net, x)
        with pytest.raises(ValueError, match=f"{operator.name()}: .*{message}"):
            operator(*given)
        if net:
            recurrence._log_loop.cache_clear()
            with caplog.at_level(logging.INFO):
                assert not recurrence.serves_net(x["weight"].new_empty(1, 1, 1, x["y"].shape[2]))
            assert reason in caplog.text
            continue
        with pytest.raises(NotImplementedError, match=f"backend='native' cannot serve the recurrence: .*{reason}"):
            recurrence.recur(**x, backend="native")
        assert recurrence.recur(**x)[0].isfinite().all()


def test_an_old_device_is_refused(device):
    device(7, 5)
    message = r"the CUDA kernels need compute capability 8.0 \(Ampere\), this device has 7.5"
    for net in (False, True):
        x = {name: y.cuda() for name, y in make(net).items()}
        operator, given = raw(net, x)
        with pytest.raises(ValueError, match=f"{operator.name()}: {message}"):
            operator(*given)
        if not net:
            with pytest.raises(NotImplementedError, match=message):
                recurrence.recur(**x, backend="native")
            assert recurrence.recur(**x)[0].isfinite().all()
    chosen, counted = layer("net").cuda(), dict(backends.served)
    out, state = chosen(torch.randn(2, 3, 16).cuda(), state=FastWeights(torch.randn(2, 2, 72, 1).cuda(), None))
    assert out.isfinite().all() and state.W.isfinite().all()
    assert backends.served.get(("native", "cuda"), 0) == counted.get(("native", "cuda"), 0)


def test_the_delta_lstm_is_a_loop_on_cuda():
    z, k, v = (torch.randn(2, 3, 6, 4).cuda() for _ in range(3))
    beta = torch.rand(2, 3, 6).cuda()
    with pytest.raises(NotImplementedError, match="no recurrence of the Delta LSTM for cuda tensors"):
        recur_lstm(z, k, v, beta, backend="native")
    out, *_ = recur_lstm(z, k, v, beta)
    expected, *_ = recur_lstm(z.cpu(), k.cpu(), v.cpu(), beta.cpu(), backend="reference")
    torch.testing.assert_close(out.cpu(), expected)

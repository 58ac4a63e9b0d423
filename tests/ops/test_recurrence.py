"""The recurrence of the Delta RNN: the compiled loop against the loop in PyTorch, what it keeps, what it refuses."""

import pytest
import torch

from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.ops import FastWeights, backends, recurrence
from fwp_fairseq.ops.recurrence import recur
from tests.ops import instruction_sets
from tests.tolerances import assert_close

needs_native = pytest.mark.needs("native")


def inputs(batch=2, length=7, heads=3, d=5, dtype=torch.float64, states=True, time_major=False) -> dict:
    def random(*shape):
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    rows = (length, batch) if time_major else (batch, length)
    z, k, v = (random(*rows, heads, d) for _ in range(3))
    beta = torch.rand(*rows, heads, dtype=dtype).requires_grad_()
    found = {"z": z, "k": k.softmax(-1).detach().requires_grad_(), "v": v, "beta": beta}
    if states:
        found |= {"R": random(batch, heads, d, d), "y": random(batch, heads, d)}
    return found


def results(x: dict, backend: str, pads=None, time_major=False) -> dict:
    """Values, and gradients of a product of them with fixed numbers."""
    given = {name: y.transpose(0, 1) if time_major and name in ("z", "k", "v", "beta") else y for name, y in x.items()}
    values = recur(**given, key_padding_mask=pads, backend=backend)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in values]
    total = sum((y * w).sum() for y, w in zip(values, weights, strict=True))
    gradients = torch.autograd.grad(total, list(x.values()))
    names = ("out", "last R", "last y")
    return dict(zip(names, values, strict=True)) | {f"d{n}": g for n, g in zip(x, gradients, strict=True)}


def assert_agree(x: dict, tolerance="operator", **options) -> None:
    expected, found = results(x, "reference", **options), results(x, "native", **options)
    for name, y in expected.items():
        assert found[name].shape == y.shape, name
        assert_close(found[name], y, tolerance)


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
        for mine, theirs in zip(recur(**nothing, backend="native"), recur(**nothing, backend="reference"), strict=True):
            assert torch.equal(mine, theirs)
        assert_agree(inputs(states=False))
        assert_agree(inputs(time_major=True), time_major=True)
        pads = torch.tensor([[True, False, True, False, False, True, True], [False] * 6 + [True]])
        assert_agree(inputs(), pads=pads)
        assert_agree(inputs(d=20), pads=torch.ones(2, 7, dtype=torch.bool))


@needs_native
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, "operator"), (torch.float32, "float32")], ids=str)
def test_going_back_over_a_thousand_positions(dtype, tolerance):
    x = inputs(1, 1000, 1, 16, dtype, states=False)
    expected = results({name: y.detach().double().requires_grad_() for name, y in x.items()}, "reference")
    found = results(x, "native")
    for name, y in expected.items():
        assert_close(found[name].double(), y, tolerance)


@needs_native
def test_one_matrix_is_kept_for_the_backward():
    sizes, x = [], inputs(2, 50, 3, 8, states=False)

    def measure(y):
        sizes.append(y.numel())
        return y

    with torch.autograd.graph.saved_tensors_hooks(measure, lambda y: y):
        recur(**x, backend="native")
    matrix, rows = 2 * 3 * 8 * 8, 2 * 50 * 3 * 8
    assert sum(size == matrix for size in sizes) == 1 and sum(sizes) <= matrix + 4 * rows + 2 * 50 * 3


@needs_native
def test_opcheck_and_gradcheck():
    x = inputs(d=6)
    pads = torch.tensor([[False] * 7, [True, True] + [False] * 5])
    arguments = [x["z"], x["k"], x["v"], x["beta"], pads, x["R"], x["y"]]
    torch.library.opcheck(torch.ops.fwp.recur.default, arguments)
    arguments[5] = arguments[6] = None
    torch.library.opcheck(torch.ops.fwp.recur.default, arguments)
    small = inputs(1, 3, 1, 3)
    assert torch.autograd.gradcheck(
        lambda *given: recur(*given[:4], R=given[4], y=given[5], backend="native"), [*small.values()]
    )
    out, *_ = recur(**x, backend="native")
    (gradient,) = torch.autograd.grad(out.sum(), x["z"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()


@needs_native
def test_refused():
    x = {name: y.detach() for name, y in inputs().items()}
    arguments = {"z": x["z"], "k": x["k"], "v": x["v"], "beta": x["beta"], "pads": None, "R": x["R"], "y": x["y"]}
    for changes, message in (
        ({"z": x["z"][:, :3]}, r"fwp::recur: z is of shape \[2, 3, 3, 5\], expected \[2, 7, 3, 5\]"),
        ({"v": x["v"].float()}, "fwp::recur: v is of type Float"),
        ({"k": x["k"].half()}, "fwp::recur: k is of type Half, expected Float or Double"),
        ({"beta": x["beta"][..., :2]}, r"fwp::recur: beta is of shape \[2, 7, 2\]"),
        ({"R": x["R"][0]}, "fwp::recur: R is of shape"),
        ({"y": x["y"][..., :4]}, "fwp::recur: y is of shape"),
        ({"pads": torch.zeros(2, 6, dtype=torch.bool)}, "fwp::recur: key_padding_mask is of shape"),
        ({"k": x["k"][..., :1].expand(2, 7, 3, 2**40), "y": None}, "fwp::recur: v is of shape"),  # k is not copied
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.ops.fwp.recur(*(arguments | changes).values())
    with pytest.raises(NotImplementedError, match=r"backend='native' cannot serve the recurrence: .* meta tensors"):
        recur(**{name: y.to("meta") for name, y in x.items()}, backend="native")


def test_without_the_library_the_loop_in_pytorch_serves(monkeypatch):
    monkeypatch.setattr(recurrence._Native, "unsupported_reasons", lambda call: ["none here"])
    x = inputs()
    for mine, theirs in zip(recur(**x), recur(**x, backend="chunked"), strict=True):
        assert torch.equal(mine, theirs)


def net(width: int, **options) -> FastWeightAttention:
    """A Recurrent Delta Net of two heads, with all weights of a size that matters."""
    layer = FastWeightAttention(2 * width, 2, update_rule="delta", feature_map="exp", recurrent="tanh", **options)
    layer = layer.double()
    torch.nn.init.normal_(layer.beta_proj.weight)
    return layer


def of_the_net(layer, x, pads, state) -> list:
    out, after = layer(x, key_padding_mask=pads, state=None if state is None else FastWeights(state, None))
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in (out, after.W)]
    leaves = [x, *layer.parameters(), *([] if state is None else [state])]
    total = (out * weights[0]).sum() + (after.W * weights[1]).sum()
    return [out, after.W, *torch.autograd.grad(total, leaves)]


@needs_native
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_a_whole_recurrent_delta_net(instruction_set):
    pads = torch.tensor([[True, False, True, False, False, True, True], [False] * 6 + [True]])
    with instruction_sets.chosen(instruction_set):
        for width in (1, 3, 8, 20, 64):
            layer, loop = net(width), net(width, backend="reference")
            loop.load_state_dict(layer.state_dict())
            x = torch.randn(2, 7, 2 * width, dtype=torch.float64, requires_grad=True)
            state = torch.randn(2, 2, width * width + width, 1, dtype=torch.float64, requires_grad=True)
            for mask, begin in ((None, None), (pads, state)):
                counted = backends.served.get(("reference", "cpu"), 0)
                found = of_the_net(layer, x, mask, begin)
                assert backends.served.get(("reference", "cpu"), 0) == counted
                for mine, theirs in zip(found, of_the_net(loop, x, mask, begin), strict=True):
                    assert_close(mine, theirs, "operator")


@needs_native
def test_a_recurrent_delta_net_at_the_ends_of_its_functions():
    """Logits at which exp is clipped, and outputs near and far from 0 under tanh, in both types."""
    layer, loop = net(4), net(4, backend="reference")
    with torch.no_grad():
        layer.q_proj.weight.mul_(60)
        layer.k_proj.weight.mul_(60)
        layer.v_proj.weight.mul_(torch.logspace(-5, 1.5, 8)[:, None])
        layer.fast_net.feedback.weight.mul_(0.3)
    loop.load_state_dict(layer.state_dict())
    x = torch.randn(3, 20, 8, dtype=torch.float64, requires_grad=True)
    expected = of_the_net(loop, x, None, None)
    assert layer.q_proj(x).max() > 30
    for mine, theirs in zip(of_the_net(layer, x, None, None), expected, strict=True):
        assert_close(mine, theirs, "operator")
    single = layer.float()(x.detach().float())[0]
    assert_close(single.double(), expected[0], "float32")


@pytest.mark.slow
@needs_native
def test_opcheck_of_the_net():
    parts = torch.randn(2, 5, 3, 13, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 13, dtype=torch.float64, requires_grad=True)
    pads = torch.tensor([[False] * 5, [True, True] + [False] * 3])
    W, y = (torch.randn(2, 3, *shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 4), (4,)))
    for arguments in ((parts, weight, pads, W, y, 30.0, 1e-6), (parts, weight, None, None, None, 30.0, 1e-6)):
        torch.library.opcheck(torch.ops.fwp.recur_net.default, arguments)
    for changes, message in (
        ({0: parts[..., :12]}, "fwp::recur_net: parts is of width 12, expected 3 d [+] 1"),
        ({1: weight[:2]}, r"fwp::recur_net: weight is of shape \[2, 4, 13\], expected \[3, 4, 13\]"),
        ({3: W.float()}, "fwp::recur_net: W is of type Float"),
        ({0: parts[..., :1].expand(2, 5, 3, 3 * 2**40 + 1), 4: None}, "fwp::recur_net: weight is of shape"),  # no copy
        ({5: 100.0}, "fwp::recur_net: largest is 100, expected 80 or less"),
    ):
        given = [changes.get(i, x) for i, x in enumerate((parts, weight, pads, W, y, 30.0, 1e-6))]
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.ops.fwp.recur_net(*given)

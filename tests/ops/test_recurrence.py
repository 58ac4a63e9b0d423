"""The recurrence of the Delta RNN: the compiled loop against the loop in PyTorch, what it keeps, what it refuses."""

import pytest
import torch

from fwp_fairseq.ops import recurrence
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
        ({"k": x["k"][..., :1].expand(2, 7, 3, 2**40), "y": None}, "fwp::recur: z is of shape"),  # k is not copied
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

"""What is read of a window: the compiled operator against PyTorch's form, storage of a decoder, what is refused."""

import pytest
import torch
from torch import Tensor

from fwp_fairseq.ops.window import read_window
from tests.ops import instruction_sets
from tests.tolerances import assert_close

needs_native = pytest.mark.needs("native")


def inputs(batch=2, targets=7, sources=7, far=3, heads=2, d=5, time_major=False) -> dict[str, Tensor]:
    """Queries, keys, values, sums, whose denominators are not negative, and the gain's u and bias."""

    def rows(length, width):
        x = torch.randn(length, batch, heads, width, dtype=torch.float64)
        return x.transpose(0, 1) if time_major else x.transpose(0, 1).contiguous()

    found = {"q": rows(targets, d), "k": rows(sources, d), "v": rows(sources, d)}
    found["sums"] = None if far is None else rows(far, d + 1).abs()
    found |= {"u": torch.randn(heads, d, dtype=torch.float64), "bias": torch.randn(heads, dtype=torch.float64)}
    return found


def results(x: dict, backend: str, **options) -> list[Tensor]:
    """Values, and gradients of a product of them with fixed numbers."""
    given = {name: None if y is None else y.detach().requires_grad_() for name, y in x.items()}
    out = read_window(**given, backend=backend, **options)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    if (pads := options.get("key_padding_mask")) is not None:  # what pads read is arbitrary
        weights[pads[:, -weights.shape[1] :]] = 0
        out = out.masked_fill(pads[:, -weights.shape[1] :, None, None], 0)
    wanted = [y for y in given.values() if y is not None]
    return [out, *torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True, materialize_grads=True)]


def assert_agree(x: dict, tolerance="operator", **options) -> None:
    for mine, theirs in zip(results(x, "native", **options), results(x, "reference", **options), strict=True):
        assert_close(mine, theirs, tolerance)


@needs_native
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values_and_gradients(instruction_set):
    """Widths and windows below, at and beyond whole vectors; earlier positions; with sums and without."""
    with instruction_sets.chosen(instruction_set):
        for d in (1, 3, 8, 16, 17, 40, 64, 80):
            assert_agree(inputs(d=d), size=4)
        for size in (1, 2, 7, 8, 20):
            assert_agree(inputs(), size=size)
        for size in (8, 16, 17):
            assert_agree(inputs(targets=40, sources=40, far=40 - size), size=size)
        for far in (None, 0, 1, 7):
            assert_agree(inputs(far=far), size=3)
        assert_agree(inputs(targets=2, sources=6, far=2), size=5)
        assert_agree(inputs(time_major=True), size=3)
        pads = torch.zeros(2, 7, dtype=torch.bool)
        pads[0, 2] = pads[1, 5:] = True
        assert_agree(inputs(), size=3, key_padding_mask=pads)


@needs_native
def test_a_query_that_may_read_nothing_gets_a_number():
    pads = torch.zeros(2, 7, dtype=torch.bool)
    pads[:, :3] = True
    for far in (3, None):
        x = {name: None if y is None else y.requires_grad_() for name, y in inputs(far=far).items()}
        out = read_window(**x, size=2, key_padding_mask=pads, backend="native")
        assert out.isfinite().all()
        out.sum().backward()
        assert all(y.grad.isfinite().all() for y in x.values() if y is not None)


@needs_native
def test_equal_keys_share_the_gradient_of_the_largest_score():
    x = inputs()
    x["k"][:, :5] = x["k"][:, :1]
    assert_agree(x, size=4)


@needs_native
def test_scores_that_differ_by_less_than_their_exponentials():
    """The gradient of the largest score belongs to it alone, where exp(s - largest) rounds to 1 at others too."""
    x = inputs(targets=12, sources=12, far=7, heads=1, d=8)
    x["q"] *= 1e-4
    x["k"] *= 1e-4
    x["u"], x["bias"] = torch.zeros_like(x["u"]), torch.zeros_like(x["bias"])
    single = {name: y.float() for name, y in x.items()}
    _, *mine = results(single, "native", size=5)
    _, *theirs = results({name: y.double() for name, y in single.items()}, "reference", size=5)
    for found, wanted in zip(mine[:2], theirs[:2], strict=True):
        assert (found.double() - wanted).abs().max() < 1e-3 * wanted.abs().max()


@needs_native
def test_a_gain_without_bounds_is_bounded():
    x = inputs()
    x["bias"] += 1000
    x["sums"] *= 1e-13  # so that what is read far away is as large as what is near, by the largest gain
    assert_agree(x, size=3)


@needs_native
def test_large_scores_in_float32():
    x = inputs(targets=20, sources=20, far=16, d=16)
    x["q"] *= 30
    single = {name: y.float() for name, y in x.items()}
    for mine, theirs in zip(results(single, "native", size=4), results(x, "reference", size=4), strict=True):
        assert_close(mine.double(), theirs, "float32")


@needs_native
@torch.no_grad()
def test_reads_where_a_decoder_has_put_keys_and_values():
    x = inputs(targets=1, sources=5, far=1, batch=3)
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(20, generator=generator)[:15].view(3, 5)
    storage = torch.full((20, 1, 2, 10), float("nan"), dtype=torch.float64)
    for row in range(3):
        for j in range(5):
            storage[order[row, j], 0] = torch.cat([x["k"][row, j], x["v"][row, j]], -1)
    stored = x | {"k": storage[..., :5], "v": storage[..., 5:]}
    pads = torch.tensor([[False] * 5, [True, *[False] * 4], [False, True, True, False, False]])
    for mask in (None, pads):
        wanted = read_window(**x, size=5, key_padding_mask=mask, backend="reference")
        for backend in ("native", "reference"):
            found = read_window(**stored, size=5, key_padding_mask=mask, places=order.int(), backend=backend)
            assert_close(found, wanted, "operator")


@needs_native
def test_opcheck_and_gradcheck():
    x = {name: y.requires_grad_() for name, y in inputs().items()}
    x["u"] = torch.randn(5, 2, dtype=torch.float64).T.requires_grad_()  # in another order of memory
    torch.library.opcheck(torch.ops.fwp.read_window.default, (*x.values(), None, None, 3))
    assert torch.autograd.gradcheck(lambda *given: read_window(*given, size=3, backend="native"), [*x.values()])
    (gradient,) = torch.autograd.grad(read_window(**x, size=3).sum(), x["v"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()
    places = torch.arange(14, dtype=torch.int32).view(2, 7)
    stored = {name: x[name].flatten(0, 1).unsqueeze(1) for name in ("k", "v")}
    with pytest.raises(NotImplementedError, match="no derivative with places"):
        read_window(**(x | stored), size=3, places=places).sum().backward()

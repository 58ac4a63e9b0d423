"""Attention through slots: the compiled operator against PyTorch's form, what it keeps, what it refuses."""

import pytest
import torch
from torch import Tensor

from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.layers import slot_memory
from fwp_fairseq.ops import slots
from tests.ops import instruction_sets
from tests.tolerances import assert_close

needs_native = pytest.mark.needs("native")

PADS = torch.tensor([[True, True, False, False, False, True, False], [False] * 5 + [True] * 2])


def inputs(batch=2, targets=4, sources=7, heads=2, d=5, m=3, time_major=False) -> dict[str, Tensor]:
    def rows(length):
        x = torch.randn(length, batch, heads, d, dtype=torch.float64)
        return x.transpose(0, 1) if time_major else x.transpose(0, 1).contiguous()

    weight = torch.randn(heads, m, d, dtype=torch.float64)
    return {
        "q": rows(targets),
        "k": rows(sources),
        "v": rows(sources),
        "weight": weight,
        "sharpness": 2 * weight[:, 0, 0],
    }


def results(x: dict, compiled: bool, pads: Tensor | None) -> list[Tensor]:
    """Values, and gradients of a product of them with fixed numbers."""
    x = {name: y.detach().requires_grad_() for name, y in x.items()}
    if compiled:
        out = slots.read_slots(*x.values(), pads)
    else:
        heads, m, d = x["weight"].shape
        phi = build_feature_map("slots", d, m, heads=heads).double()
        phi.weight, phi.sharpness = torch.nn.Parameter(x["weight"]), torch.nn.Parameter(x["sharpness"])
        x |= {"weight": phi.weight, "sharpness": phi.sharpness}
        out, _ = slot_memory.attend(phi, x["q"], x["k"], x["v"], pads, backend="reference")
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    return [out, *torch.autograd.grad((out * weights).sum(), list(x.values()))]


def assert_agree(x: dict, pads: Tensor | None = None) -> None:
    for mine, theirs in zip(results(x, True, pads), results(x, False, pads), strict=True):
        assert_close(mine, theirs, "operator")


@needs_native
@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values_and_gradients(instruction_set):
    """Widths, slots and lengths below, at and beyond whole vectors; fewer and more positions than slots."""
    with instruction_sets.chosen(instruction_set):
        for d in (1, 3, 8, 16, 17, 40, 64):
            assert_agree(inputs(d=d))
        for m in (1, 2, 6, 7, 8, 64):
            assert_agree(inputs(m=m))
            assert_agree(inputs(m=m), PADS)
        for targets, sources in ((1, 1), (1, 20), (16, 17), (33, 16), (0, 3)):
            assert_agree(inputs(targets=targets, sources=sources, m=16))
        assert_agree(inputs(time_major=True), PADS)


@needs_native
def test_a_source_of_pads_alone_gives_nothing():
    pads = torch.ones(2, 7, dtype=torch.bool)
    pads[1] = False
    x = inputs()
    out, *gradients = results(x, True, pads)
    alone = results({name: y[1:] if y.dim() == 4 else y for name, y in x.items()}, True, None)
    assert not out[0].any() and not any(g[0].any() for g in gradients[:3])
    assert_close(out[1], alone[0][0], "rounding")
    assert slots.read_slots(*inputs(sources=0).values(), None).eq(0).all()


@needs_native
def test_large_scores_in_float32():
    x = inputs(targets=20, sources=20, d=16, m=8)
    x["q"] *= 10
    x["weight"] *= 10
    single = {name: y.float() for name, y in x.items()}
    for mine, theirs in zip(results(single, True, None), results(x, False, None), strict=True):
        assert_close(mine.double(), theirs, "float32")


@needs_native
def test_nothing_but_inputs_is_kept_for_the_backward():
    kept, x = [], {name: y.requires_grad_() for name, y in inputs().items()}
    with torch.autograd.graph.saved_tensors_hooks(lambda y: kept.append(y.numel()) or y, lambda y: y):
        slots.read_slots(*x.values(), None)
    assert sum(kept) == sum(y.numel() for y in x.values())


@needs_native
def test_opcheck_and_gradcheck():
    x = {name: y.requires_grad_() for name, y in inputs().items()}
    for pads in (None, PADS):
        torch.library.opcheck(torch.ops.fwp.read_slots.default, (*x.values(), pads))
        assert torch.autograd.gradcheck(lambda *given, pads=pads: slots.read_slots(*given, pads), [*x.values()])
    turned = torch.randn(5, 3, 2, dtype=torch.float64).permute(2, 1, 0).requires_grad_()  # in another order of memory
    torch.library.opcheck(torch.ops.fwp.read_slots.default, (*(x | {"weight": turned}).values(), PADS))
    (gradient,) = torch.autograd.grad(slots.read_slots(*x.values(), None).sum(), x["v"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()


@needs_native
def test_refused():
    x = inputs()
    usual = {**x, "pads": None}
    for changes, message in (
        ({"q": x["q"].half()}, "fwp::read_slots: q is of type Half, expected Float or Double"),
        ({"k": x["k"][:, :, :1]}, r"fwp::read_slots: k is of shape \[2, 7, 1, 5\], expected \[2, 7, 2, 5\]"),
        ({"v": x["v"].float()}, "fwp::read_slots: v is of type Float"),
        ({"weight": x["weight"][:1]}, r"fwp::read_slots: weight is of shape \[1, 3, 5\], expected \[2, 3, 5\]"),
        ({"weight": x["weight"][:, :0]}, "fwp::read_slots: weight is of 0 slots, expected 1 or more"),
        ({"sharpness": x["sharpness"][:1]}, r"fwp::read_slots: sharpness is of shape \[1\], expected \[2\]"),
        ({"pads": PADS[:, 1:]}, "fwp::read_slots: key_padding_mask is of shape"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.ops.fwp.read_slots(*(usual | changes).values())


def test_reasons():
    assert slots.compiled_reasons(torch.device("cpu"), torch.float16)[-1].endswith("no slots for torch.float16")
    assert slots.compiled_reasons(torch.device("meta"), torch.float32)[-1].endswith("no slots for meta tensors")

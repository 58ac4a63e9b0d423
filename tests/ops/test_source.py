"""What queries read of a source: the compiled operator against PyTorch's form, layouts, padding, what is refused."""

import pytest
import torch
from torch import Tensor

from fwp_fairseq.ops.source import read_source, source_weights
from tests.ops import instruction_sets
from tests.tolerances import assert_close

pytestmark = pytest.mark.needs("native")


def inputs(sources=2, queries=4, heads=2, d=8, length=20, d_value=None, dtype=torch.float64) -> dict[str, Tensor]:
    return {
        "q": torch.randn(sources, queries, heads, d, dtype=dtype),
        "keys": torch.randn(sources, heads, d, length, dtype=dtype),
        "values": torch.randn(sources, heads, length, d_value or d, dtype=dtype),
    }


def assert_agree(x: dict, tolerance="operator", **options) -> None:
    wide = {name: y.double() for name, y in x.items()}
    found = read_source(**x, backend="native", **options)
    assert_close(found.double(), read_source(**wide, backend="reference", **options), tolerance)


def test_the_equation():
    """Both backends against the definition, written out; pads are left out."""
    x, pads = inputs(sources=1, queries=2, heads=1, d=3, length=5), torch.tensor([[False, True, False, False, True]])
    q, keys, values, shown = x["q"][0, :, 0], x["keys"][0, 0].T, x["values"][0, 0], ~pads[0]
    e = torch.stack([(keys[shown] @ one).exp() for one in q])
    expected = (e / e.sum(1, keepdim=True)) @ values[shown]
    for backend in ("native", "reference"):
        assert_close(read_source(**x, key_padding_mask=pads, backend=backend)[0, :, 0], expected, "operator")
    weights = source_weights(x["q"], x["keys"], pads)[0, 0]
    assert_close(weights[:, shown], e / e.sum(1, keepdim=True), "operator")
    assert not weights[:, pads[0]].any()


@pytest.mark.parametrize("instruction_set", instruction_sets.usable())
def test_values(instruction_set):
    """Widths and lengths below, at and beyond whole vectors, and beyond the length that is prefetched; many queries."""
    with instruction_sets.chosen(instruction_set):
        for d, d_value in ((1, 1), (3, 5), (16, 16), (17, 40), (64, 80), (33, 7)):
            assert_agree(inputs(d=d, d_value=d_value))
        for length in (1, 2, 15, 16, 17, 31, 64, 255, 256, 257, 300, 531):
            assert_agree(inputs(length=length))
            assert_agree(inputs(length=length, dtype=torch.float32), "float32")
        for queries in (0, 1, 3, 8, 15, 16, 17, 40):
            assert_agree(inputs(queries=queries))
        pads = torch.rand(2, 20) < 0.4
        pads[:, 3] = False
        assert_agree(inputs(), key_padding_mask=pads)
        assert_agree(inputs(), key_padding_mask=torch.rand(20, 2).lt(0.4).index_fill(0, torch.tensor(3), False).T)


def test_other_layouts():
    x = inputs(sources=3)
    time_major = x["q"].transpose(0, 1).contiguous().transpose(0, 1)
    out = read_source(**(x | {"q": time_major}), backend="native")
    assert out.stride() == torch.empty(4, 3, 2, 8).transpose(0, 1).stride()
    expected = read_source(**x, backend="reference")
    assert_close(out, expected, "operator")
    others = {"keys": x["keys"].mT.contiguous().mT, "values": x["values"].transpose(0, 1).contiguous().transpose(0, 1)}
    assert_close(read_source(**(x | others), backend="native"), expected, "operator")


def test_large_scores_and_what_is_not_finite():
    x = inputs(length=40, dtype=torch.float32)
    assert_agree(x | {"q": x["q"] * 1000}, "float32")
    assert_agree(x | {"q": x["q"] * 1e-6}, "float32")
    pads = torch.zeros(2, 40, dtype=torch.bool)
    pads[0, 30:] = True
    expected = read_source(**x, key_padding_mask=pads, backend="native")
    x["keys"][0, :, :, 35] = float("nan")  # at a pad
    assert torch.equal(read_source(**x, key_padding_mask=pads, backend="native"), expected)
    x["keys"][0, :, :, 5] = float("nan")
    found = read_source(**x, key_padding_mask=pads, backend="native")
    assert found[0].isnan().all()
    assert torch.equal(found[1], expected[1])
    pads[1] = True
    assert read_source(**x, key_padding_mask=pads, backend="native")[1].isnan().all()


def test_gradients_are_left_to_pytorch():
    x = {name: y.requires_grad_() for name, y in inputs(length=5).items()}
    assert torch.autograd.gradcheck(lambda q, keys, values: read_source(q, keys, values), [*x.values()])
    with pytest.raises(NotImplementedError, match="the kernel of read_source has no gradient"):
        read_source(**x, backend="native")
    with torch.no_grad():
        read_source(**x, backend="native")


@torch.no_grad()
def test_the_operator_in_graphs():
    x, pads = inputs(), torch.zeros(2, 20, dtype=torch.bool)
    for mask in (None, pads):
        torch.library.opcheck(torch.ops.fwp.read_source.default, (*x.values(), mask))
    compiled = torch.compile(lambda **given: read_source(**given), backend="aot_eager", fullgraph=True)
    assert_close(compiled(**x), read_source(**x), "operator")

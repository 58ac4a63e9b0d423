"""Linear layers in eight bits against the same in float64."""

import copy

import pytest
import torch
from torch import nn

from fwp_fairseq.modules.int8 import Int8Linear, quantize_
from fwp_fairseq.modules.large_linears import SMALLEST


@pytest.fixture(params=["amx", "vnni", "neither"], autouse=True)
def amx(request, monkeypatch):
    if request.param == "vnni" and not torch.cpu._is_vnni_supported():
        pytest.skip("this processor lacks VNNI, and sums of full eight-bit products overflow without it")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: request.param == "amx")
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: request.param != "neither")
    return request.param == "amx"


@pytest.mark.parametrize("inputs, outputs, bias", [(512, 512, True), (64, 4096, False), (2048, 128, True)])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (2, 0)])
def test_the_product(inputs, outputs, bias, shape):
    torch.manual_seed(1)
    linear = nn.Linear(inputs, outputs, bias=bias)
    linear.weight.data *= torch.rand(outputs, 1) * 10  # each row has a scale of its own
    x = torch.randn(*shape, inputs)
    found, exact = Int8Linear(linear)(x).double(), copy.deepcopy(linear).double()(x.double())
    assert found.shape == exact.shape
    scale = linear.weight.double().square().mean(1).sqrt() * inputs**0.5
    assert ((found - exact) / scale).abs().max() < 0.12 if exact.numel() else True


def test_onednn_where_there_is_amx_and_other_code_keeps_its_kernels(amx, monkeypatch):
    before = torch.backends.quantized.engine
    monkeypatch.setattr(torch.ops.quantized, "linear_prepack", lambda *_: torch.backends.quantized.engine)
    assert Int8Linear(nn.Linear(512, 512)).packed == ("onednn" if amx else before)
    assert torch.backends.quantized.engine == before


def test_outliers_of_one_row_do_not_cost_the_others():
    torch.manual_seed(1)
    linear = nn.Linear(512, 512)
    linear.weight.data[0, 0] = 100.0
    x = torch.randn(4, 512)
    error = (Int8Linear(linear)(x) - linear(x))[:, 1:].detach()
    assert error.square().mean().sqrt() < 0.02 * linear(x)[:, 1:].std()


@pytest.mark.parametrize("bias", [True, False])
def test_a_row_depends_on_no_other_row(bias):
    torch.manual_seed(1)
    int8 = Int8Linear(nn.Linear(512, 600, bias=bias))
    x = torch.randn(6, 5, 512) * torch.logspace(-30, 30, 30).view(6, 5, 1)
    x[0, 1], x[2, 3], x[4, 4, 7], x[5, 0, 0] = 0, torch.nan, torch.inf, -torch.inf
    alone = torch.stack([int8(row[None])[0] for row in x.flatten(0, 1)]).view(6, 5, 600)
    for chosen in ([slice(None)], [slice(2, 3)], [slice(None, None, 2), torch.tensor([4, 0, 3])]):
        assert torch.equal(int8(x[tuple(chosen)]).nan_to_num(), alone[tuple(chosen)].nan_to_num())
    finite = x.isfinite().all(-1)
    assert alone[finite].isfinite().all() and alone[~finite].isnan().any(-1).all()
    exact = nn.functional.linear(x.double(), int8.weight.double(), int8.bias.double() if bias else None)
    error = (alone.double() - exact)[finite].abs().amax(-1)
    assert (error <= 0.05 * x.double()[finite].abs().amax(-1) + 1e-6).all()


def test_what_is_read_of_it_is_what_it_computes_with():
    torch.manual_seed(1)
    linear = nn.Linear(512, 512)
    int8 = Int8Linear(linear)
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    assert ((int8.weight - linear.weight).abs() <= step / 2 + 1e-7).all()
    assert torch.equal(int8.bias, linear.bias)
    with pytest.raises(NotImplementedError, match="copy the model before it is prepared"):
        copy.deepcopy(int8)


def test_only_large_layers_change_and_half_precision_is_refused():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, SMALLEST // 512 - 1), nn.Sequential(nn.Linear(511, 513)))
    assert quantize_(model) == ["0"] and isinstance(model[0], Int8Linear)
    with pytest.raises(NotImplementedError, match=r"0\.weight is in a form for decoding: save the model before"):
        model.state_dict()
    with pytest.raises(ValueError, match=r"is torch\.float16, expected torch\.float32"):
        quantize_(nn.Sequential(nn.Linear(512, 512).half()))

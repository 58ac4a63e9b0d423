"""Linear layers in eight bits against the same in float64."""

import copy
import pickle

import pytest
import torch
from torch import nn

from fwp_fairseq.modules.int8 import Int8Linear, quantize_


@pytest.fixture(params=[False, True], autouse=True)
def amx(request, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: request.param)
    return request.param


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


def test_what_is_read_of_it_is_what_it_computes_with():
    torch.manual_seed(1)
    linear, x = nn.Linear(512, 512), torch.randn(3, 512)
    int8 = Int8Linear(linear)
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    assert ((int8.weight - linear.weight).abs() <= step / 2 + 1e-7).all()
    assert torch.equal(int8.bias, linear.bias)
    for copied in (copy.deepcopy(int8), pickle.loads(pickle.dumps(int8))):
        assert torch.equal(copied(x), int8(x))


def test_half_precision_is_refused():
    with pytest.raises(ValueError, match=r"is torch\.float16, expected torch\.float32"):
        quantize_(nn.Sequential(nn.Linear(512, 512).half()))

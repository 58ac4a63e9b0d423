"""Linear layers whose weights are laid out once, against the same in float64, alone and in a model."""

import copy

import pytest
import torch
from torch import nn

from fwp_fairseq.modules.int8 import Int8Linear
from fwp_fairseq.modules.packed import PackedLinear, pack_
from tests.models import helpers
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN here")


@pytest.mark.parametrize("inputs, outputs, bias", [(512, 512, True), (64, 4096, False), (2048, 128, True)])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (5, 40), (2, 0)])
def test_the_product(inputs, outputs, bias, shape):
    torch.manual_seed(1)
    linear, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(*shape, inputs)
    packed = PackedLinear(linear)
    with torch.no_grad():
        assert_close(packed(x), copy.deepcopy(linear).double()(x.double()), "float32")
        strided = x.transpose(0, 1) if x.dim() > 2 else x
        assert_close(packed(strided), linear.double()(strided.double()), "float32")
    assert torch.equal(packed.weight, linear.weight.float()) and (packed.bias is None) != bias


@pytest.mark.parametrize("make", [PackedLinear, Int8Linear])
def test_gradients_are_refused(make):
    layer, x = make(nn.Linear(512, 512)), torch.randn(2, 512, requires_grad=True)
    with pytest.raises(RuntimeError, match="prepared for decoding; expected a call under torch"):
        layer(x)
    with torch.no_grad():
        assert layer(x).isfinite().all()


@pytest.mark.parametrize("attention", [{}, {"fwp_feature_map": "softmax"}], ids=str)
def test_a_model_computes_the_same(attention):
    """Logits of a source with pads. fairseq's attention in encoders, which reads weights, keeps its layers."""
    sizes = dict(encoder_embed_dim=512, encoder_ffn_embed_dim=512, encoder_layers=1, decoder_layers=1)
    exact = helpers.build(**sizes, **attention)
    model = copy.deepcopy(exact).float()
    changed = pack_(model)
    assert any("encoder.layers.0.self_attn" in name for name in changed) != ("fwp_feature_map" in attention)
    assert {"decoder.layers.0.self_attn.q_proj", "decoder.layers.0.encoder_attn.q_proj"} < {*changed}
    source, lengths = helpers.sources([7, 3])
    with torch.no_grad():
        found, expected = (m(source, lengths, helpers.prefixes(2, 5))[0] for m in (model, exact))
    assert_close(found, expected, "float32")


def test_only_large_layers_of_single_precision_change():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 511), nn.Sequential(nn.Linear(512, 512)))
    assert pack_(copy.deepcopy(model).half()) == []
    assert pack_(model) == ["0", "2.0"] and isinstance(model[0], PackedLinear)
    with pytest.raises(NotImplementedError, match=r"0\.weight is in a form for decoding: save the model before"):
        model.state_dict()

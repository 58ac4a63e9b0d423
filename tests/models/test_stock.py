"""Compares models with the stock Transformer: names, initialisation and, with softmax, outputs."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import transformer_legacy as stock
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

from fwp_fairseq.models.attention_flags import BUFFER
from fwp_fairseq.modules import FastWeightSiteAttention
from tests.models.helpers import SIZES, WORDS, arguments, build, build_raw, loss, prefixes, sources

ARCHITECTURES = sorted(name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model == "fwp_transformer")


def stock_model(seed: int = 0, **flags):
    torch.manual_seed(seed)
    args = arguments("fwp_transformer", **(SIZES | {"share_all_embeddings": True, "dropout": 0.1} | flags))
    stock.base_architecture(args)
    task = SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS)
    return TransformerModel.build_model(args, task).double().eval()


WIDTHS = {  # of the model, its heads and its feed-forward parts
    "": (512, 8, 2048), "_tiny": (192, 4, 384), "_iwslt_de_en": (512, 4, 1024), "_wmt_en_de": (512, 8, 2048),
    "_big": (1024, 16, 4096),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_builds(arch):
    """Models are built at full size without memory. FAVOR+ needs memory to draw numbers, so its model is shallow."""
    if "performer" in arch:
        model = build_raw(arch, encoder_layers=1, decoder_layers=1)
    else:
        with torch.device("meta"):
            model = build_raw(arch)
    attentions = [module for module in model.modules() if isinstance(module, FastWeightSiteAttention)]
    sites = 1 if arch.endswith("_hybrid") else 2  # of a decoder's layer; a hybrid's cross-attention is softmax
    layers = len(model.encoder.layers) + sites * len(model.decoder.layers)
    assert len(attentions) == layers
    size = arch.removesuffix("_hybrid").removeprefix("fwp_transformer")
    width, heads, inner = WIDTHS.get(size) or WIDTHS[size[-4:]]
    assert {(a.embed_dim, a.num_heads) for a in attentions} == {(width, heads)}
    assert {layer.fc1.out_features for layer in (*model.encoder.layers, *model.decoder.layers)} == {inner}


@pytest.mark.parametrize("feature_map", ["elu", "dpfp", "favor"])
def test_names_in_a_checkpoint_and_initialisation(feature_map):
    model, stock_one = build(fwp_feature_map=feature_map), stock_model()
    for name, parameter in stock_one.named_parameters():  # the draws of FAVOR+ come in between
        assert feature_map == "favor" or torch.equal(model.get_parameter(name), parameter), name
    mine, theirs = set(model.state_dict()), set(stock_one.state_dict())
    favor = {name for name in mine if name.endswith((".feature_map.projection", ".feature_map.seed"))}
    assert mine == theirs | {BUFFER} | favor
    assert len(favor) == (12 if feature_map == "favor" else 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_softmax_is_the_stock_model(seed):
    mine, theirs = build(seed, fwp_feature_map="softmax"), stock_model(seed)
    assert not any(isinstance(module, FastWeightSiteAttention) for module in mine.modules())
    for name, parameter in theirs.named_parameters():
        assert torch.equal(mine.get_parameter(name), parameter), name
    for left in (True, False):
        src, lengths = sources([7, 4, 1], left=left)
        assert torch.equal(mine(src, lengths, prefixes(3, 6))[0], theirs(src, lengths, prefixes(3, 6))[0])
    for model in (mine, theirs):
        model.train()
        torch.manual_seed(seed)
        loss(model).backward()
    for name, parameter in theirs.named_parameters():
        assert torch.equal(mine.get_parameter(name).grad, parameter.grad), name


def test_a_stock_checkpoint_loads_into_softmax_and_nothing_else():
    mine = build(seed=1, fwp_feature_map="softmax")
    theirs = stock_model()
    mine.load_state_dict(theirs.state_dict())
    src, lengths = sources([5, 2])
    assert torch.equal(mine(src, lengths, prefixes(2, 3))[0], theirs(src, lengths, prefixes(2, 3))[0])
    with pytest.raises(ValueError, match=r"checkpoint has \[softmax\], this model has \[.*dpfp"):
        build().load_state_dict(stock_model().state_dict())


FUSED = [f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]


@pytest.mark.parametrize("feature_map", ["dpfp", "softmax"])
def test_a_fused_encoder_layer_is_not_used(feature_map, monkeypatch):
    """fairseq's own has one in some versions, which computes softmax attention from copies of the parameters."""
    init, forward = TransformerEncoderLayerBase.__init__, TransformerEncoderLayerBase.forward

    def fused_init(layer, cfg, return_fc=False):
        init(layer, cfg, return_fc)
        layer.can_use_fastpath = True
        for name in FUSED:
            layer.register_parameter(name, torch.nn.Parameter(torch.zeros(2)))

    def fused_forward(layer, *args, **kwargs):
        assert layer.training or not layer.can_use_fastpath
        return forward(layer, *args, **kwargs)

    monkeypatch.setattr(TransformerEncoderLayerBase, "__init__", fused_init)
    monkeypatch.setattr(TransformerEncoderLayerBase, "forward", fused_forward)
    model, other = build(fwp_feature_map=feature_map), build(seed=1, fwp_feature_map=feature_map)
    assert not any(name.rpartition(".")[2] in FUSED for name, _ in model.named_parameters())
    other.load_state_dict(model.state_dict() | {f"encoder.layers.0.{name}": torch.zeros(2) for name in FUSED})
    assert torch.equal(loss(model), loss(other))

"""Compares models with the stock Transformer: parameters, names, initialisation and, with softmax, outputs."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import transformer_legacy as stock
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

from fwp_fairseq.models.attention_flags import BUFFER
from fwp_fairseq.modules import SiteAttention
from tests.models.helpers import SIZES, WORDS, arguments, build, build_raw, loss, prefixes, sources

ARCHITECTURES = sorted(name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model == "fwp_transformer")
BIG = "fwp_transformer_vaswani_wmt_en_de_big"


def stock_model(seed: int = 0, **flags):
    torch.manual_seed(seed)
    args = arguments("fwp_transformer", **(SIZES | {"share_all_embeddings": True, "dropout": 0.1} | flags))
    stock.base_architecture(args)
    task = SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS)
    return TransformerModel.build_model(args, task).double().eval()


def count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_promised_architecture_is_registered():
    assert set(ARCHITECTURES) >= {
        "fwp_transformer", "fwp_transformer_tiny", "fwp_transformer_iwslt_de_en", "fwp_transformer_wmt_en_de", BIG,
        "linear_transformer_wmt_en_de_big", "performer_transformer_wmt_en_de_big", "dpfp_transformer_wmt_en_de_big",
        "delta_transformer_wmt_en_de_big",
    }  # fmt: skip


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_builds(arch):
    """Models are built at full size without memory. FAVOR+ needs memory to draw numbers, so its model is shallow."""
    if "performer" in arch:
        model = build_raw(arch, encoder_layers=1, decoder_layers=1)
    else:
        with torch.device("meta"):
            model = build_raw(arch)
    attentions = [module for module in model.modules() if isinstance(module, SiteAttention)]
    sites = 1 if arch.endswith("_hybrid") else 2  # of a decoder's layer; a hybrid's cross-attention is softmax
    layers = len(model.encoder.layers) + sites * len(model.decoder.layers)
    assert len(attentions) == layers
    if arch.endswith("_big"):
        assert {(a.embed_dim, a.num_heads) for a in attentions} == {(1024, 16)}
        assert model.encoder.layers[0].fc1.out_features == 4096


@pytest.mark.parametrize(
    "rule, extra_per_site", [("sum", 0), ("delta", 16384), ("gated", 16384 + 16), ("gated_delta", 2 * 16384 + 32)]
)
@pytest.mark.parametrize("feature_map", ["dpfp", "elu"])
def test_parameters_of_the_big_model(feature_map, rule, extra_per_site):
    with torch.device("meta"):
        mine = build_raw(BIG, share_all_embeddings=True, fwp_feature_map=feature_map, fwp_update_rule=rule)
        args = arguments("fwp_transformer", share_all_embeddings=True)
        for name in [name for name in vars(args) if not name.startswith(("max_", "share_all"))]:
            delattr(args, name)
        stock.transformer_vaswani_wmt_en_de_big(args)
        theirs = TransformerModel.build_model(args, SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS))
    assert count(mine) == count(theirs) + 18 * extra_per_site
    added = {name for name, _ in mine.named_parameters()} - {name for name, _ in theirs.named_parameters()}
    assert all(".beta_proj." in name or ".decay." in name for name in added)
    assert len(added) == 18 * {"sum": 0, "delta": 1, "gated": 2, "gated_delta": 4}[rule]


@pytest.mark.parametrize("feature_map", ["elu", "dpfp", "favor"])
def test_names_in_a_checkpoint(feature_map):
    mine = set(build(fwp_feature_map=feature_map).state_dict())
    theirs = set(stock_model().state_dict())
    favor = {name for name in mine if name.endswith((".feature_map.projection", ".feature_map.seed"))}
    assert mine == theirs | {BUFFER} | favor
    assert len(favor) == (12 if feature_map == "favor" else 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_softmax_is_the_stock_model(seed):
    mine, theirs = build(seed, fwp_feature_map="softmax"), stock_model(seed)
    assert not any(isinstance(module, SiteAttention) for module in mine.modules())
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


def test_the_same_seed_initialises_shared_parameters_alike():
    mine, theirs = build(fwp_feature_map="dpfp"), stock_model()
    for name, parameter in theirs.named_parameters():
        assert torch.equal(mine.get_parameter(name), parameter), name


def test_a_stock_checkpoint_loads_into_softmax_and_nothing_else():
    mine = build(seed=1, fwp_feature_map="softmax")
    theirs = stock_model()
    mine.load_state_dict(theirs.state_dict())
    src, lengths = sources([5, 2])
    assert torch.equal(mine(src, lengths, prefixes(2, 3))[0], theirs(src, lengths, prefixes(2, 3))[0])
    with pytest.raises(ValueError, match=r"checkpoint has \[softmax\], this model has \[.*dpfp"):
        build().load_state_dict(stock_model().state_dict())


class TestFusedInference:
    """fairseq 0.12.2 has a fused encoder layer that computes softmax attention and never calls self_attn."""

    NAMES = tuple(f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias"))

    @pytest.fixture(autouse=True)
    def _fake(self, monkeypatch):
        init, forward = TransformerEncoderLayerBase.__init__, TransformerEncoderLayerBase.forward

        def fused_init(layer, cfg, return_fc=False):
            init(layer, cfg, return_fc)
            layer.can_use_fastpath = True
            for name in self.NAMES:
                layer.register_parameter(name, torch.nn.Parameter(torch.zeros(2)))

        def fused_forward(layer, *args, **kwargs):
            if layer.can_use_fastpath and not layer.training:
                raise AssertionError("the fused path was taken")
            return forward(layer, *args, **kwargs)

        def fused_load(layer, state_dict, prefix, *args):
            raise AssertionError("the fused layer's own loading copies self_attn.q_proj and others")

        monkeypatch.setattr(TransformerEncoderLayerBase, "__init__", fused_init)
        monkeypatch.setattr(TransformerEncoderLayerBase, "forward", fused_forward)
        monkeypatch.setattr(TransformerEncoderLayerBase, "_load_from_state_dict", fused_load, raising=False)

    @pytest.mark.parametrize("feature_map", ["dpfp", "softmax"])
    def test_is_not_taken(self, feature_map):
        model = build(fwp_feature_map=feature_map)
        assert loss(model).isfinite()
        assert not any(name.rpartition(".")[2] in self.NAMES for name, _ in model.named_parameters())

    def test_its_copies_in_a_checkpoint_are_dropped(self):
        model, other = build(), build(seed=1)
        state = model.state_dict() | {f"encoder.layers.0.{name}": torch.zeros(2) for name in self.NAMES}
        other.load_state_dict(state)
        assert torch.equal(loss(model), loss(other))

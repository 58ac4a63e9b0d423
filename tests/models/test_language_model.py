"""Tests the decoder-only model: its sizes, steps equal one pass, softmax equals fairseq's own model."""

import argparse
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModel

from fwp_fairseq.models.fwp_language_model import FwpLanguageModel, FwpLanguageModelConfig
from fwp_fairseq.models.transformer_xl import TransformerXlConfig, TransformerXlLanguageModel
from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.ops import RULES
from tests.models.helpers import WORDS, dictionary, prefixes, tokens
from tests.tolerances import assert_close

ARCHITECTURES = sorted(name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model == "fwp_lm")
SIZES = dict(decoder_embed_dim=12, decoder_ffn_embed_dim=16, decoder_attention_heads=2, decoder_layers=2)


def build(arch="fwp_lm", seed=0, cls=FwpLanguageModel, config=FwpLanguageModelConfig, words=WORDS, **flags):
    """Builds a model as from the command line: flags, then the architecture's values, then the defaults."""
    args = argparse.Namespace(tokens_per_sample=64, max_target_positions=64, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    for option in fields(config):
        if not hasattr(args, option.name) and "${" not in str(option.default):
            setattr(args, option.name, option.default)
    task = SimpleNamespace(dictionary=words, source_dictionary=words, target_dictionary=words)
    torch.manual_seed(seed)
    return cls.build_model(args, task)


def tiny(**flags):
    return build(**(SIZES | flags)).double().eval()


def test_every_promised_architecture_is_registered():
    assert ARCHITECTURES == ["fwp_lm", "fwp_lm_wikitext103_medium", "fwp_lm_wikitext103_small"]


# The published numbers of parameters, in millions, are those of the paper's code.
@pytest.mark.parametrize("size, width, published, gate", [("small", 128, 44.02, 16384), ("medium", 256, 89.83, 32768)])
def test_wikitext103(size, width, published, gate):
    """Sizes of the paper's Sec. 6.3, and the attention of the four cells of its Table 3."""
    words, parameters = dictionary(267_740), {}  # and 4 symbols: fairseq's of WikiText-103, which has 267,735 words
    for name, flags, normalizer in (
        ("sum", {}, "attention"),
        ("delta", {"fwp_update_rule": "delta"}, "sum"),
        ("attention normalisation", {"fwp_update_rule": "delta", "fwp_normalizer": "both"}, "both"),
        ("no positions", {"fwp_update_rule": "delta", "no_token_positional_embeddings": True}, "sum"),
    ):
        with torch.device("meta"):
            model = build(f"fwp_lm_wikitext103_{size}", words=words, **flags)
        assert not model.decoder.layers[0].normalize_before
        parameters[name] = sum(p.numel() for p in model.parameters())
        sites = [module for module in model.modules() if isinstance(module, FastWeightSiteAttention)]
        assert len(sites) == 16 and {(a.embed_dim, a.num_heads, a.site) for a in sites} == {(width, 8, "decoder")}
        rule = flags.get("fwp_update_rule", "sum")
        expected = f"feature-map=elu d-dot={width // 8} update-rule={rule} normalizer={normalizer}"
        assert {a.options.describe(a.head_dim) for a in sites} == {expected}
        assert (model.decoder.embed_positions is None) == (name == "no positions")
    assert parameters["sum"] == pytest.approx(published * 1e6, rel=0.01)
    assert parameters["delta"] - parameters["sum"] == gate
    assert parameters["delta"] == parameters["attention normalisation"] == parameters["no positions"]


@torch.no_grad()
@pytest.mark.parametrize("rule", RULES)
def test_step_by_step_equals_at_once(rule):
    model = tiny(fwp_update_rule=rule)
    prefix, state = prefixes(4, 1), {}
    for step in range(10):
        if step in (3, 5):
            order = torch.tensor([3, 0, 0, 2]) if step == 3 else torch.tensor([1, 0])
            model.decoder.reorder_incremental_state_scripting(state, order)
            prefix = prefix[order]
        now, _ = model.decoder(prefix, incremental_state=state)
        assert_close(now[:, 0], model(prefix)[0][:, -1], "model")
        prefix = torch.cat([prefix, tokens(len(prefix), 1, seed=step)], 1)


XL = {"arch": "transformer_xl_lm", "cls": TransformerXlLanguageModel, "config": TransformerXlConfig}


@pytest.mark.parametrize("heads", [5, 0])
@pytest.mark.parametrize("model", [{}, XL], ids=["fwp_lm", "transformer_xl_lm"])
def test_heads_that_do_not_divide_the_width_are_refused(model, heads):
    with pytest.raises(ValueError, match=f"--decoder-attention-heads {heads}: expected a divisor of .* width, 12"):
        build(**model, **SIZES | {"decoder_attention_heads": heads})


def test_softmax_is_the_stock_model():
    stock = tiny(cls=TransformerLanguageModel)
    mine = tiny(fwp_feature_map="softmax", seed=1)
    mine.load_state_dict(stock.state_dict())
    assert torch.equal(mine(prefixes(3, 7))[0], stock(prefixes(3, 7))[0])
    with pytest.raises(ValueError, match=r"checkpoint has \[softmax\], this model has \[decoder: feature-map=dpfp"):
        tiny().load_state_dict(tiny(cls=TransformerLanguageModel).state_dict())

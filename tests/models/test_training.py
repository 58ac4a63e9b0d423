"""Tests training: gradients, checkpointed activations, layer drop, dropout, precision, examples of flags."""

import re
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import build_model
from omegaconf import OmegaConf

from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.ops import RULES
from tests.models.helpers import WORDS, build, loss, prefixes, sources
from tests.models.test_hydra_names import by_arch
from tests.pages import ROOT, block, commands
from tests.tolerances import assert_close

MAPS = ("elu", "dpfp", "favor")


def _trained(model, seed: int = 1):
    """Returns the loss and the gradients of one step."""
    model.train()
    model.set_num_updates(3)
    torch.manual_seed(seed)
    found = loss(model)
    found.backward()
    return found.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("feature_map", MAPS)
def test_checkpointed_activations_change_nothing(feature_map, rule):
    flags = dict(fwp_feature_map=feature_map, fwp_update_rule=rule, attention_dropout=0.2)
    expected_loss, expected = _trained(build(**flags))
    found_loss, found = _trained(build(**flags, checkpoint_activations=True))
    assert torch.equal(found_loss, expected_loss)
    assert set(found) == set(expected)
    for name, gradient in found.items():
        assert gradient.any(), name
        assert_close(gradient, expected[name], "rounding")


def test_layer_drop_never_shows_the_future_to_softmax():
    """The future mask does not depend on which layers are dropped."""
    model = build(fwp_decoder="softmax", decoder_layers=1, decoder_layerdrop=0.5, dropout=0.0).train()
    x = torch.zeros(4, 2, 12, dtype=torch.float64)
    assert all(model.decoder.buffered_future_mask(x) is not None for _ in range(40))


def test_no_quadratic_mask_without_softmax():
    assert build().decoder.buffered_future_mask(torch.zeros(4, 2, 12)) is None


def test_the_decoder_sees_no_future_in_training():
    for flags in ({}, {"fwp_update_rule": "delta"}, {"fwp_decoder": "softmax"}):
        model = build(dropout=0.0, **flags).train()
        src, lengths = sources([5, 4])
        prefix = prefixes(2, 8)
        other = prefix.clone()
        other[:, 5:] = other[:, 5:].flip(1)
        other[:, 5] = 7
        a, b = (model(src, lengths, p)[0] for p in (prefix, other))
        assert_close(a[:, :5], b[:, :5], "rounding")
        assert not torch.equal(a[:, 5:], b[:, 5:])


EXAMPLES = re.findall(r"^\| [^|]+ \| `(--fwp-[^`.]+)` \|", (ROOT / "docs/usage.md").read_text(), re.M)
assert len(EXAMPLES) > 5
EXAMPLES += commands(block("docs/recurrent.md", "--fwp-decoder delta-rnn"))


@pytest.mark.parametrize("flags", EXAMPLES)
def test_examples_of_flags_give_models_that_train(flags):
    """With heads of 64."""
    words, parts = flags.split(), ("decoder",) if "fwp_lm" in flags else ("encoder", "decoder")
    chosen = {flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    arch, task = chosen.pop("arch", "fwp_transformer_tiny"), "language_modeling" if len(parts) == 1 else "translation"
    sizes = {"embed_dim": 128, "attention_heads": 2, "layers": 1}
    chosen |= {f"{part}_{name}": size for part in parts for name, size in sizes.items()}
    dictionaries = SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS, dictionary=WORDS)
    model = build_model(OmegaConf.create(by_arch(arch, task, chosen)), dictionaries).train()
    out, _ = model(*(sources([7, 5]) if len(parts) == 2 else ()), prefixes(2, 12))  # longer than the window
    out.square().mean().backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in model.parameters())


def test_updates_reach_every_favor_map_and_draw_apart():
    model = build(fwp_feature_map="favor").train()
    model.set_num_updates(5)
    drawn = [m.feature_map.training_projection for m in model.modules() if isinstance(m, FastWeightSiteAttention)]
    assert len(drawn) == 6
    assert len({tuple(x.flatten().tolist()) for x in drawn}) == 6

"""examples/translation.py with a model that has fast weights at all three sites."""

import json
import re
import shlex

import pytest
import torch

from examples import translation

PROGRAM = """
import sys

sys.path.insert(0, {root!r})
from examples import translation

sys.exit(translation.main({arguments!r}))
"""
CROSS = [f"decoder.layers.{number}.encoder_attn" for number in (0, 1)]


def test_translation(tools, mixed):
    """The translation is fairseq-generate's; a head's weights sum to 1; every layer, head and position has a write."""
    expected = tools.generate("mixed/checkpoint_best.pt", "--beam", 4, "--max-len-a", 1.2, "--max-len-b", 10).ok()
    sentence = expected.lines("S")[0].split("\t")[0]
    arguments = ["mixed", "--data", "bin", "--spm", "none", "--sentence", sentence, "--out", "pictures"]
    tools.python(PROGRAM.format(root=str(tools.root), arguments=arguments)).ok()
    found = json.loads((tools.folder / "pictures" / "translation.json").read_text())
    assert " ".join(found["translation"]) == f"{expected.translations()[0]} </s>"
    assert " ".join(found["source"]) == f"{sentence} </s>"
    weights = torch.tensor(found["cross_attention"])
    assert weights.shape == (2, len(found["translation"]), len(found["source"]))
    heads = 2 * weights.sum(-1)  # a head of DPFP that shares no feature with the source reads nothing
    assert (heads - heads.round()).abs().max() < 1e-3 and heads.max() < 2.1 and heads.mean() > 1
    assert len(found["writes"]) == 6
    for name, values in found["writes"].items():
        positions = found["translation"] if name.startswith("decoder") and name not in CROSS else found["source"]
        assert torch.tensor(values).shape == (2, len(positions)) and torch.tensor(values).max() > 0
    for name in ("cross_attention.svg", "writes.svg"):
        assert "<svg" in (tools.folder / "pictures" / name).read_text()
    arguments[0] = "none.pt"
    wrong = tools.python(PROGRAM.format(root=str(tools.root), arguments=arguments))
    assert wrong.error.startswith("translation: error: none.pt: expected a checkpoint, or a folder with one of ")


@pytest.mark.parametrize(
    "name, flags",
    [
        ("hybrid", ["--arch", "fwp_transformer_tiny_hybrid"]),
        ("window", ["--fwp-feature-map", "softmax", "--fwp-decoder", "hedgehog-window,window=2"]),
    ],
)
def test_models_with_fast_weights_in_the_decoder(tools, name, flags):
    """The command of its page. Heads that go both ways have no state to show, and softmax writes nothing."""
    flags = (*flags, "--max-update", 2, "--disable-validation", "--no-epoch-checkpoints")
    tools.train(name, *flags, without=("--arch",) if "--arch" in flags else ()).ok()
    (line,) = re.findall(r"^python examples/translation.py hybrid (.*)$", translation.__doc__, re.M)
    arguments = [name, *shlex.split(line), "--out", f"{name}-pictures"]
    tools.python(PROGRAM.format(root=str(tools.root), arguments=arguments)).ok()
    found = json.loads((tools.folder / f"{name}-pictures" / "translation.json").read_text())
    weights = torch.tensor(found["cross_attention"])
    assert weights.shape == (2, len(found["translation"]), len(found["source"]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-3, rtol=0)
    assert list(found["writes"]) == [f"decoder.layers.{number}.self_attn" for number in (0, 1)]
    for values in map(torch.tensor, found["writes"].values()):
        written = values.shape[1] - (2 if name == "window" else 0)  # the last two never leave the window
        assert values.shape == (2, len(found["translation"])) and written > 0
        assert (values[:, :written] > 0).all() and not values[:, written:].any()

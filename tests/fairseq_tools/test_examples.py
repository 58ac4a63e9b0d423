"""examples/translation.py with a model that has fast weights at all three sites."""

import json

import torch

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
    arguments = ["mixed/checkpoint_best.pt", "--data", "bin", "--sentence", sentence, "--out", "pictures"]
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
    assert wrong.error == "translation: error: none.pt: no such file"


def test_a_hybrid_model(tools):
    """Heads that go both ways have no state to show, and softmax writes nothing."""
    usual = list(tools.training)
    usual[usual.index("--arch") + 1] = "fwp_transformer_tiny_hybrid"
    flags = ("--max-update", 2, "--disable-validation", "--no-epoch-checkpoints", "--save-dir", "hybrid")
    tools.run("train", *usual, *flags).ok()
    arguments = ["hybrid/checkpoint_last.pt", "--data", "bin", "--sentence", "▁A ▁man", "--out", "hybrid-pictures"]
    tools.python(PROGRAM.format(root=str(tools.root), arguments=arguments)).ok()
    found = json.loads((tools.folder / "hybrid-pictures" / "translation.json").read_text())
    weights = torch.tensor(found["cross_attention"])
    assert weights.shape == (2, len(found["translation"]), 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-3, rtol=0)
    assert list(found["writes"]) == [f"decoder.layers.{number}.self_attn" for number in (0, 1)]

"""Runs the code of docs/layers.md as it is printed there."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"


def test_snippets():
    attention, cross, decoder = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    known = {}
    exec(attention, known)
    assert known["out"].shape == (8, 256) and known["state"].W.shape == (8, 4, 128, 64)
    known = {}
    exec(cross, known)
    assert known["out"].shape == (8, 1, 256)
    known = {}
    exec(decoder, known)
    assert known["logits"].shape == (16, 65) and len(known["state"]) == 3
    assert all(parameter.grad.isfinite().all() for parameter in known["model"].parameters())
    assert torch.cat([parameter.grad.flatten() for parameter in known["model"].parameters()]).any()

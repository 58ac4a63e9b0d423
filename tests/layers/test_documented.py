"""Runs the code of docs/layers.md and docs/recurrent.md as it is printed there."""

import re

import torch

from tests.pages import ROOT


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.M | re.S)


def test_recurrent():
    (attention,) = snippets("recurrent.md")
    known = {}
    exec(attention, known)
    assert known["out"].shape == (8, 256) and known["state"].W.shape == (8, 4, 64, 64)


def test_snippets():
    attention, cross, decoder, operators = snippets("layers.md")
    known = {}
    exec(attention, known)
    assert known["out"].shape == (8, 256) and known["state"].W.shape == (8, 4, 64, 64)
    known = {}
    exec(cross, known)
    assert known["out"].shape == (8, 1, 256)
    known = {}
    exec(decoder, known)
    assert known["logits"].shape == (16, 65) and len(known["state"]) == 3
    assert all(parameter.grad.isfinite().all() for parameter in known["model"].parameters())
    assert torch.cat([parameter.grad.flatten() for parameter in known["model"].parameters()]).any()
    known = {}
    exec(operators, known)
    assert known["out"].shape == (2, 1, 4, 64) and known["state"].W.shape == (2, 4, 256, 64)

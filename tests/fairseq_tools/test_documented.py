"""Runs the commands of README.md and docs/usage.md as they are printed there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def block(page: str, beginning: str, language: str = "") -> str:
    """Returns the only block of code that begins with these words."""
    found = re.findall(rf"^```{language}\n({re.escape(beginning)}.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    assert len(found) == 1, (page, beginning)
    return found[0]


def test_own_data(tools, tmp_path):
    shutil.copytree(tools.folder / "bin", tmp_path / "data-bin")
    for path in (tmp_path / "data-bin").glob("valid.*"):  # 40 training pairs are enough
        shutil.copy(path, path.with_name(path.name.replace("valid", "train")))
    shutil.copy(tools.folder / "raw" / "val.de", tmp_path / "test.de")
    done = subprocess.run(
        ["bash", "-euc", block("README.md", "fairseq-train data-bin")],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout + done.stderr
    assert len(re.findall(r"\| valid \|", printed)) == 10
    translated = (tmp_path / "translations" / "generate-test.txt").read_text()
    assert len(re.findall(r"^H-\d+\t", translated, re.M)) == 40
    assert re.search(r"^BLEU\S* = \d", done.stdout, re.M), done.stdout[-2000:]


def test_operators_without_fairseq():
    shape = (2, 5, 4, 64)
    q, k, v, q1, k1, v1 = (torch.randn(shape) for _ in range(6))
    beta, beta1 = (torch.rand(shape[:-1]) for _ in range(2))
    known = {"q": q, "k": k, "v": v, "beta": beta, "q1": q1, "k1": k1, "v1": v1, "beta1": beta1}
    exec(block("docs/usage.md", "from fwp_fairseq import", "python"), known)
    assert known["out"].shape == shape and known["state"].W.shape == (2, 4, 256, 64)

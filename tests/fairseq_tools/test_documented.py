"""What README.md and docs/usage.md say to run, as it is written there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def block(page: str, beginning: str, language: str = "") -> str:
    """The one block of code that begins so."""
    found = re.findall(rf"^```{language}\n({re.escape(beginning)}.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    assert len(found) == 1, (page, beginning)
    return found[0]


def test_own_data(tools, tmp_path):
    shutil.copytree(tools.folder / "bin", tmp_path / "data-bin")
    shutil.copy(tools.folder / "raw" / "val.de", tmp_path / "test.de")
    done = subprocess.run(
        ["bash", "-euc", block("README.md", "fairseq-train data-bin")],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    scored = re.search(r"^BLEU\S* = ([\d.]+)", done.stdout, re.M)
    # 600 pairs teach little: more than nothing says that the model was trained and every step was fed the last one's.
    assert scored and float(scored[1]) > 0.5, done.stdout[-2000:]
    assert len(re.findall(r"\| valid \|", done.stdout + done.stderr)) == 20


def test_operators_without_fairseq():
    shape = (2, 5, 4, 64)
    q, k, v, q1, k1, v1 = (torch.randn(shape) for _ in range(6))
    beta, beta1 = (torch.rand(shape[:-1]) for _ in range(2))
    known = {"q": q, "k": k, "v": v, "beta": beta, "q1": q1, "k1": k1, "v1": v1, "beta1": beta1}
    exec(block("docs/usage.md", "from fwp_fairseq import", "python"), known)
    assert known["out"].shape == shape and known["state"].W.shape == (2, 4, 256, 64)

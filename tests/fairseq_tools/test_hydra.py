"""The command lines at the head of scripts/hydra/multi30k_tiny.yaml, as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
NAME = "multi30k_tiny"
SMALL = [
    "++model.encoder_embed_dim=32",
    "++optimization.max_update=2",
    "common.log_interval=1",
    "common.log_format=json",
]


def documented() -> list[list[str]]:
    text = (ROOT / f"scripts/hydra/{NAME}.yaml").read_text(encoding="utf-8")
    return [shlex.split(line) for line in re.findall(r"^#   (fairseq-.*)$", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def stand(tools):
    """What these commands find in the root of the repository, beside the tools' corpus."""
    for name in ("scripts", "fwp_fairseq"):
        (tools.folder / name).symlink_to(ROOT / name)
    return tools


def test_documented_commands(stand):
    train, train_another, generate = ([word.replace("DATA-BIN", "bin") for word in line] for line in documented())
    before = set(stand.folder.iterdir())
    first = stand.command(*train, *SMALL[1:]).ok()
    assert "Warning" not in first.err + first.out
    second = stand.command(*train_another, *SMALL).ok()
    assert {path.name for path in set(stand.folder.iterdir()) - before} == {"runs"}
    runs = stand.folder / "runs/hydra" / NAME
    # The options that tests add stand in the names of the folders, too.
    folders = {path.parent.parent for path in runs.rglob("checkpoint_last.pt")}
    assert len(folders) == 2
    print(folders)
    assert first and second and generate and torch

"""Runs the commands at the heads of scripts/hydra/multi30k_tiny.yaml and examples/hybrid.yaml as they are printed."""

import re
import shlex
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
YAML = ROOT / "scripts/hydra/multi30k_tiny.yaml"
OUT = "runs/hydra/multi30k_tiny"
# The same training with the architecture's name on the command line.
BY_ARCH = [
    *("--arch", "fwp_transformer_tiny", "--task", "translation", "-s", "en", "-t", "de", "--cpu", "--seed", 1),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1, "--max-tokens", 2500),
    *("--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 400),
    *("--lr", 0.003, "--required-batch-size-multiple", 1, "--max-update", 2),
]


def test_a_hybrid_on_data_of_ones_own(tools):
    """The YAML file trains the model that the architecture's flags do; its own options win."""
    (tools.folder / "examples").symlink_to(ROOT / "examples")
    (line,) = re.findall(r"^#   (fairseq-.*)$", (ROOT / "examples/hybrid.yaml").read_text(), re.MULTILINE)
    line = line.replace("$PWD/data-bin", "bin").replace("$(fwp path)", str(ROOT / "fwp_fairseq"))
    tools.command(*shlex.split(line), "optimization.max_update=2", "common.cpu=true").ok()
    state = tools.load("hybrid/checkpoints/checkpoint_last.pt")
    model = state["cfg"]["model"]
    assert state["optimizer_history"][-1]["num_updates"] == 2 and model["fwp_cross_feature_map"] == "softmax"
    assert model["fwp_encoder_update_rule"] == model["fwp_decoder_update_rule"] == "gated_delta"
    assert model["fwp_encoder_passes"] == "both-ways" and model["encoder_layers"] == 2


@pytest.fixture(scope="module")
def documented(tools):
    """Runs the commands in a folder that has the files that they need from the root of the repository."""
    for name in ("scripts", "fwp_fairseq"):
        (tools.folder / name).symlink_to(ROOT / name)
    lines = re.findall(r"^#   (fairseq-.*)$", YAML.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line.replace("DATA-BIN", "bin")) for line in lines]


def test_documented_commands(tools, documented):
    train, train_another, generate = documented
    before = set(tools.folder.iterdir())
    tools.command(*train, "optimization.max_update=2").ok()
    tools.run("hydra_train", *train_another[1:], "optimization.max_update=2").ok()
    assert {path.name for path in set(tools.folder.iterdir()) - before} == {"runs"}
    found = {str(path.parent.relative_to(tools.folder)) for path in tools.folder.glob(f"{OUT}/**/checkpoint_last.pt")}
    assert found == {f"{OUT}/checkpoints", f"{OUT}/++model.dropout=0.2/checkpoints"}
    assert tools.load(f"{OUT}/++model.dropout=0.2/checkpoints/checkpoint_last.pt")["cfg"]["model"]["dropout"] == 0.2
    assert len(tools.run("generate", *generate[1:], "--max-len-b", 10).ok().translations()) == 40

    tools.run("train", "bin", *tools.user_dir, *BY_ARCH, "--save-dir", "by-arch").ok()
    state, by_arch = (tools.load(f"{name}/checkpoint_last.pt") for name in (f"{OUT}/checkpoints", "by-arch"))
    assert state["model"].keys() == by_arch["model"].keys()
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in by_arch["model"].items())
    assert state["cfg"]["model"].items() <= by_arch["cfg"]["model"].items()

    again = tools.run("hydra_train", *train[1:], "optimization.max_update=3").ok()
    assert "@ 2 updates" in again.out + again.err
    assert tools.load(f"{OUT}/checkpoints/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 3

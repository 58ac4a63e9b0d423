"""Runs the commands at the head of examples/hybrid.yaml as they are printed."""

import re
import shlex

import pytest
import torch

from tests.pages import ROOT

pytestmark = pytest.mark.slow

# The same training with the architecture's name on the command line.
BY_ARCH = [
    *("--arch", "fwp_transformer_tiny_hybrid", "--task", "translation", "-s", "en", "-t", "de", "--cpu", "--seed", 1),
    *("--fwp-encoder", "gated-delta,passes=both-ways", "--fwp-decoder", "gated-delta", "--dropout", 0.3),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1, "--max-tokens", 2500),
    *("--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 200),
    *("--lr", 0.003, "--clip-norm", 1, "--required-batch-size-multiple", 1, "--max-update", 2),
]


def test_documented_commands(tools):
    """The YAML file trains the model that the architecture's flags do; its own options win."""
    (tools.folder / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "examples/hybrid.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(\$PWD/)?data-bin", "bin", text).replace("$(fwp path)", str(ROOT / "fwp_fairseq"))
    train, generate = (shlex.split(line) for line in re.findall(r"^#   (fairseq-.*)$", text, re.MULTILINE))
    train = [*train[1:], "common.cpu=true"]
    tools.run("hydra_train", *train, "optimization.max_update=2").ok()
    # null is the architecture's
    own = ["++model.dropout=0.2", "++model.fwp_cross=null", "++model.fwp_feature_map=null"]
    tools.run("hydra_train", *train, "optimization.max_update=2", *own).ok()
    found = {str(path.parent.relative_to(tools.folder)) for path in tools.folder.glob("hybrid/**/checkpoints/*last.pt")}
    assert found == {"hybrid/checkpoints", f"hybrid/{','.join(own)}/checkpoints"}
    model = tools.load(f"hybrid/{','.join(own)}/checkpoints/checkpoint_last.pt")["cfg"]["model"]
    assert (model["dropout"], model["fwp_cross"], model["fwp_feature_map"]) == (0.2, "softmax", "dpfp")
    assert len(tools.run("generate", *generate[1:], "--cpu", "--max-len-b", 10).ok().translations()) == 40

    tools.run("train", "bin", *tools.user_dir, *BY_ARCH, "--save-dir", "by-arch").ok()
    state, by_arch = (tools.load(f"{name}/checkpoint_last.pt") for name in ("hybrid/checkpoints", "by-arch"))
    assert state["cfg"]["model"]["fwp_encoder"] == "gated-delta,passes=both-ways"
    assert state["model"].keys() == by_arch["model"].keys()
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in by_arch["model"].items())
    assert state["cfg"]["model"].items() <= by_arch["cfg"]["model"].items()

    again = tools.run("hydra_train", *train, "optimization.max_update=3").ok()
    assert "@ 2 updates" in again.out + again.err
    assert tools.load("hybrid/checkpoints/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 3

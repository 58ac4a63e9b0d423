"""Attention transfer by fairseq-train: only feature maps change, the loss falls, and the result decodes."""

import shlex

import pytest
import torch

SOFTMAX = ("--fwp-feature-map", "softmax")
HEDGEHOG = ("--fwp-feature-map", "hedgehog", "--fwp-d-dot", 32)
OPTIMIZER = (
    *("--optimizer", "adam", "--lr", 1e-2, "--lr-scheduler", "fixed", "--weight-decay", 0.1),
    *("--criterion", "attention_transfer", "--cpu", "--seed", 1, "--num-workers", 0),
    *("--log-format", "json", "--log-interval", 1, "--no-progress-bar"),
)
UPDATES = 20


def convert(tools, source, output, *flags):
    """Returns the flags with which fairseq-train builds the converted model."""
    found = tools.command("fwp", "convert", "--input", source, "--output", output, *flags).ok()
    return shlex.split(found.out.splitlines()[-1])


def transfer(tools, words, save_dir, *more, updates=UPDATES):
    return tools.run(
        *("train", "bin", *tools.user_dir, "--task", "translation", "-s", "en", "-t", "de", *words, *OPTIMIZER),
        *("--batch-size", 40, "--dropout", 0.1, "--save-dir", save_dir, "--max-update", updates, *more),
    )


def parameters(tools, path):
    """Those of feature maps and windows, and all others."""
    model = tools.load(path)["model"]
    maps = {name for name in model if ".memory." in name}
    return {name: model[name] for name in maps}, {name: x for name, x in model.items() if name not in maps}


@pytest.fixture(scope="module")
def words(tools):
    tools.train("softmax", *SOFTMAX, "--max-update", 60, "--no-epoch-checkpoints").ok()
    return convert(tools, "softmax/checkpoint_last.pt", "hedgehog.pt", *HEDGEHOG, "--fwp-decoder", "window=3")


@pytest.fixture(scope="module")
def transferred(tools, words):
    return transfer(tools, words, "transferred", "--save-interval-updates", UPDATES // 2).ok()


def test_the_loss_falls_and_nothing_but_maps_changes(tools, transferred):
    losses = transferred.losses()
    assert len(losses) == UPDATES
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    for site in ("encoder", "decoder", "cross"):
        course = transferred.losses(f"loss_{site}")
        assert len(course) == UPDATES and course[-1] < course[0]
    validated = transferred.losses("valid_loss")
    assert validated[-1] < validated[0]
    maps, others = parameters(tools, "transferred/checkpoint_last.pt")
    maps_before, others_before = parameters(tools, "hedgehog.pt")
    assert len(maps) == 16 and maps.keys() == maps_before.keys() and others.keys() == others_before.keys()
    assert not any(torch.equal(x, maps_before[name]) for name, x in maps.items())
    assert all(torch.equal(x, others_before[name]) for name, x in others.items())
    state = tools.load("transferred/checkpoint_last.pt")["last_optimizer_state"]["state"]
    assert len(state) == len(maps)


def test_the_result_decodes_and_is_fine_tuned(tools, words, transferred):
    path = "transferred/checkpoint_last.pt"
    lazy, defined = (
        tools.generate(path, "--beam", 3, "--max-len-b", 10, *more).ok().translations()
        for more in ((), ("--model-overrides", "{'fwp_backend': 'reference'}"))
    )
    assert lazy == defined and len(lazy) == 40
    words = [path if word == "hedgehog.pt" else word for word in words]
    more = ("--save-dir", "after-transfer", "--max-update", 3)
    found = tools.run("train", "bin", *tools.user_dir, *words, *tools.usual, *more).ok()
    assert f"loading pretrained model from {path}" in found.out + found.err and len(found.losses()) == 3
    before, after = (parameters(tools, name) for name in (path, "after-transfer/checkpoint_last.pt"))
    weight = "decoder.layers.0.encoder_attn.q_proj.weight"
    assert not torch.equal(before[1][weight], after[1][weight])
    assert not any(torch.equal(x, after[0][name]) for name, x in before[0].items())


def test_resumed_equals_uninterrupted(tools, words, transferred):
    half = f"transferred/checkpoint_1_{UPDATES // 2}.pt"
    words = words[words.index("--arch") :]
    transfer(tools, words, "resumed", "--restore-file", half).ok()
    found, wanted = (tools.load(f"{folder}/checkpoint_last.pt")["model"] for folder in ("resumed", "transferred"))
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], x) for name, x in wanted.items())

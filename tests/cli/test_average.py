import argparse
import os
import subprocess

import pytest
import torch
from fairseq.logging import meters

from tests.full_disk import full_disk


def checkpoint(value=1.0, **options):
    """Returns a small checkpoint with the entries that fairseq saves."""
    return {
        "args": None,
        "cfg": {
            "model": {
                "_name": "anothers_transformer",
                "fwp_update_rule": "sum",
                "fwp_decoder": "favor",
                "encoder_attention_heads": 4,
                **options,
            },
            "task": {"_name": "translation"},
        },
        "model": {
            "weight": torch.full((2, 3), value),
            "half": torch.full((2,), value, dtype=torch.float16),
            "version": torch.tensor([3]),
            "encoder.favor.projection": torch.arange(6.0).view(2, 3) / 7,
        },
        "optimizer_history": [{"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": int(value)}],
        "extra_state": {"train_iterator": {"epoch": int(value)}, "ema": {"a": torch.zeros(1)}, "ema_fp32_params": {}},
        "last_optimizer_state": {"state": torch.zeros(100)},
    }


@pytest.fixture
def save(tmp_path):
    def write(state, name):
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def pair(save):
    return [save(checkpoint(value), f"checkpoint{int(value)}.pt") for value in (1.0, 4.0)]


def test_mean_of_the_parameters(fwp, pair, tmp_path):
    result = fwp("average", "--inputs", *pair, "--output", tmp_path / "out.pt")
    assert result.status == 0 and "1/2" in result.out and "2/2" in result.out
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    first = checkpoint()
    assert torch.equal(state["model"]["weight"], torch.full((2, 3), 2.5))
    assert torch.equal(state["model"]["half"], torch.full((2,), 2.5, dtype=torch.float16))
    for name in ("version", "encoder.favor.projection"):
        assert torch.equal(state["model"][name], first["model"][name])
    assert list(state["model"]) == list(first["model"])
    assert state["cfg"] == first["cfg"]
    assert state["optimizer_history"] == checkpoint(4.0)["optimizer_history"]
    assert "last_optimizer_state" not in state and state["extra_state"].keys() == {"train_iterator"}


def test_shared_parameters_stay_one(fwp, save, tmp_path):
    states = [checkpoint(value) for value in (1.0, 4.0)]
    for state in states:
        state["model"]["output"] = state["model"]["weight"]
    paths = [save(state, f"{number}.pt") for number, state in enumerate(states)]
    assert fwp("average", "--inputs", *paths, "--output", tmp_path / "out.pt").status == 0
    model = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    assert model["weight"].data_ptr() == model["output"].data_ptr() and model["weight"][0, 0] == 2.5


def test_sums_are_exact_in_half_precision(fwp, save, tmp_path):
    paths = [save(checkpoint(60000.0), f"{i}.pt") for i in range(3)]
    assert fwp("average", "--inputs", *paths, "--output", tmp_path / "out.pt").status == 0
    half = torch.load(tmp_path / "out.pt", weights_only=True)["model"]["half"]
    assert torch.equal(half, torch.full((2,), 60000.0, dtype=torch.float16))


@pytest.mark.parametrize("kind, other", [("checkpoint", "checkpoint_1_50.pt"), ("checkpoint_1_", "checkpoint_x.pt")])
def test_last_by_number_not_by_name(fwp, save, tmp_path, kind, other):
    """Of epochs, and of updates if there are no others."""
    for number in (2, 9, 10, 11):
        save(checkpoint(float(number)), f"{kind}{number}.pt")
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", other):
        save(checkpoint(1000.0), name)
    assert fwp("average", "--checkpoint-dir", tmp_path, "--last", 3, "--output", tmp_path / "out.pt").status == 0
    assert torch.load(tmp_path / "out.pt", weights_only=True)["model"]["weight"][0, 0] == 10


def test_legacy_arguments_and_bleu_meters_load_safely(fwp, save, tmp_path):
    import numpy as np

    state = checkpoint()
    state |= {"cfg": None, "args": argparse.Namespace(arch="transformer", encoder_layers=2)}
    state["extra_state"]["metrics"] = {"bleu": np.arange(4), "best": np.float64(3)}
    assert fwp("average", "--inputs", save(state, "a.pt"), "--output", tmp_path / "out.pt").status == 0


@pytest.mark.parametrize("module", ["fairseq.meters", "fairseq.logging.meters"])
def test_the_meters_of_old_trainings_load_safely(fwp, save, tmp_path, monkeypatch, module):
    """fairseq wrote them until 0.9, when they were in the first module."""
    found = {name: getattr(meters, name)() for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")}
    for meter in found.values():
        monkeypatch.setattr(type(meter), "__module__", module)
    state = checkpoint()
    state["extra_state"]["train_meters"] = found
    assert fwp("average", "--inputs", save(state, "a.pt"), "--output", tmp_path / "out.pt").status == 0


def test_the_configuration_of_a_model_of_fairseqs_own(fwp, save, tmp_path):
    """It is a Namespace, as fairseq-train writes it for --arch transformer."""
    state = checkpoint()
    state["cfg"]["model"] = argparse.Namespace(_name="transformer", arch="transformer", encoder_layers=2)
    assert fwp("average", "--inputs", save(state, "a.pt"), "--output", tmp_path / "out.pt").status == 0
    assert torch.load(tmp_path / "out.pt", weights_only=True)["cfg"]["model"] == state["cfg"]["model"]


def changed(**model):
    state = checkpoint(2.0)
    state["model"] |= model
    return state


def without(name):
    state = checkpoint(2.0)
    del state["model"][name]
    return state


@pytest.mark.parametrize(
    "other, named",
    [
        (checkpoint(2.0, fwp_update_rule="delta"), ["fwp_update_rule", "'delta'", "'sum'"]),
        (checkpoint(2.0, fwp_decoder="favor,d-dot=8"), ["fwp_decoder", "'favor,d-dot=8'", "'favor'"]),
        (checkpoint(2.0, encoder_attention_heads=8), ["encoder_attention_heads", "8", "4"]),
        (changed(**{"encoder.favor.projection": torch.zeros(2, 3)}), ["projection", "different trainings"]),
        (changed(version=torch.tensor([4])), ["version"]),
        (changed(weight=torch.zeros(3, 2)), ["weight", "(3, 2)", "(2, 3)"]),
        (changed(extra=torch.zeros(1)), ["extra"]),
        (without("half"), ["half"]),
        (changed(half=torch.tensor([1.0, float("nan")]).half()), ["1 of 2 numbers in half are NaN"]),
        (changed(weight=3), ["weight is of type int, expected a tensor"]),
        ({"weights": 1}, ["not a fairseq checkpoint"]),
    ],
)
def test_checkpoints_that_do_not_go_together(refused, save, pair, tmp_path, other, named):
    path = save(other, "other.pt")
    message = refused(1, "average", "--inputs", pair[0], path, "--output", tmp_path / "out.pt")
    assert all(name in message for name in ["other.pt", *named]), message
    assert not (tmp_path / "out.pt").exists()


def test_options_of_training_and_speed_may_differ(fwp, save, pair, tmp_path):
    """The options of fairseq's own Transformer are all of the command line."""
    other = checkpoint(
        2.0,
        dropout=0.3,
        fwp_backend="reference",
        fwp_decoder="favor,directions=fixed",
        checkpoint_activations=True,
        max_epoch=3,
    )
    other["cfg"]["optimization"] = {"max_epoch": 3}
    path = save(other, "other.pt")
    assert fwp("average", "--inputs", pair[0], path, "--output", tmp_path / "out.pt").status == 0


class Harmful:
    def __reduce__(self):
        return (os.system, ("touch harmed",))


def test_unsafe_checkpoint_is_refused_and_not_run(refused, save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = checkpoint() | {"extra_state": Harmful()}
    assert "safely" in refused(1, "average", "--inputs", save(state, "bad.pt"), "--output", tmp_path / "out.pt")
    assert not (tmp_path / "harmed").exists()


def test_calls_that_make_no_sense(refused, pair, tmp_path):
    out = ("--output", tmp_path / "out.pt")
    assert "one of the inputs" in refused(2, "average", "--inputs", *pair, "--output", pair[0])
    link = tmp_path / "link.pt"
    link.symlink_to(pair[0])
    assert "one of the inputs" in refused(2, "average", "--inputs", *pair, "--output", link)
    assert "more than once" in refused(2, "average", "--inputs", pair[0], link, *out)
    assert "--last" in refused(2, "average", "--inputs", *pair, "--last", 2, *out)
    assert "--last" in refused(2, "average", "--checkpoint-dir", tmp_path, *out)
    assert "--last" in refused(2, "average", "--checkpoint-dir", tmp_path, "--last", 0, *out)
    assert "existing folder" in refused(2, "average", "--inputs", *pair, "--output", tmp_path / "no" / "out.pt")
    assert "--no-epoch-checkpoints" in refused(1, "average", "--checkpoint-dir", tmp_path, "--last", 3, *out)
    assert "no such folder" in refused(1, "average", "--checkpoint-dir", tmp_path / "no", "--last", 3, *out)
    assert "no such checkpoint" in refused(1, "average", "--inputs", tmp_path / "no.pt", *out)


FULL_DISK = f"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from fwp_fairseq.cli import main
from fwp_fairseq.cli.plugin import import_plugin
import_plugin()
{full_disk(2000)}
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_full_disk_leaves_the_old_output(pair, tmp_path, forked_python):
    (tmp_path / "out.pt").write_bytes(b"old")
    before = sorted(tmp_path.iterdir())
    command = [forked_python.program, "-c", FULL_DISK, "average", "--inputs", *pair, "--output", tmp_path / "out.pt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "could not be written: File too large" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "out.pt").read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == before

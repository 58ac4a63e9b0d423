"""Tests preprocessing, training, resuming and validation with fairseq's own commands."""

import pytest
import torch


def assert_same_state(found: dict, expected: dict) -> None:
    """Compares bit for bit: parameters, buffers, moving averages, optimizer, number of updates, place in the data."""
    models = [(found["model"], expected["model"])]
    models += [(found["extra_state"][key], value) for key, value in expected["extra_state"].items() if "ema" in key]
    for tensors, others in models:
        assert tensors.keys() == others.keys()
        for name, tensor in others.items():
            assert torch.equal(tensors[name], tensor), name
    optimizers = [state["last_optimizer_state"] for state in (found, expected)]
    for key in ("loss_scale", "loss_scaler"):
        assert optimizers[0].get(key) == optimizers[1].get(key), key
    for mine, theirs in zip(*(optimizer.get("fp32_params", []) for optimizer in optimizers), strict=True):
        assert torch.equal(mine, theirs)
    moments, others = (optimizer["state"] for optimizer in optimizers)
    assert moments.keys() == others.keys() and moments
    for number, values in others.items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(moments[number][name]), torch.as_tensor(value)), (number, name)
    for key in ("num_updates", "lr_scheduler_state"):
        assert found["optimizer_history"][-1][key] == expected["optimizer_history"][-1][key]
    iterators = [state["extra_state"]["train_iterator"] for state in (found, expected)]
    assert iterators[0] == iterators[1]


@pytest.mark.parametrize("name", ["mixed", "favor"])
def test_loss_is_finite_and_falls(name, request):
    losses = request.getfixturevalue(name).losses()
    assert len(losses) >= 75
    assert sum(losses[-10:]) / 10 < 0.85 * sum(losses[:10]) / 10


def test_best_checkpoint_by_bleu(tools, mixed):
    best = mixed.losses("valid_best_bleu")
    assert len(mixed.losses("valid_bleu")) == 2 and best[-1] == max(mixed.losses("valid_bleu")) > 0
    assert (tools.folder / "mixed/checkpoint_best.pt").is_file()


def test_starts_without_warnings(tools):
    """The real command in a new process shows the user no warning about fairseq's internals."""
    found = tools.command(*("fairseq-train", *tools.training, "--max-update", 1, "--no-save"), fresh=True).ok()
    assert "Warning" not in found.err + found.out
    assert "Traceback" not in found.err


# fairseq's own choice of batches, as in a training that began before the plugin chose batches.
OWN_BATCHES = """
from fairseq.tasks import FairseqTask
own = FairseqTask.get_batch_iterator
import fwp_fairseq.mends
FairseqTask.get_batch_iterator = own
"""


@pytest.mark.parametrize(("name", "begun_with"), [("mixed", ""), ("favor", OWN_BATCHES)], ids=["mixed", "favor"])
def test_resumed_run_is_bit_identical(tools, name, begun_with):
    """The run is interrupted within the first, the second and the third epoch. It uses dropout and layer drop."""
    flags = [*tools.attention[name], "--encoder-layerdrop", 0.2, "--no-epoch-checkpoints", "--disable-validation"]
    flags += ["--train-subset", "valid", "--batch-size", 6]  # an epoch is 7 batches
    flags += ["--store-ema", "--ema-fp32", "--ema-decay", 0.9, "--save-interval-updates", 3, "--max-update"]
    tools.train(f"whole.{name}", *flags, 16, prelude=begun_with).ok()
    # Each session goes on from a checkpoint before the last one, as if the session before it had been killed.
    for checkpoint, updates in ((f"whole.{name}/checkpoint_1_3", 10), ("checkpoint_2_9", 16), ("checkpoint_3_15", 16)):
        path = checkpoint if "/" in checkpoint else f"parts.{name}/{checkpoint}"
        resumed = tools.train(f"parts.{name}", *flags, updates, "--restore-file", f"{path}.pt").ok()
        assert f"@ {checkpoint.rpartition('_')[2]} updates" in resumed.out
    assert_same_state(tools.load(f"parts.{name}/checkpoint_last.pt"), tools.load(f"whole.{name}/checkpoint_last.pt"))


def test_finished_training_is_left_alone(tools):
    """It is started again with the same limit, as after a kill between its last save and its end."""
    flags = [*tools.attention["favor"], "--max-update", 4, "--disable-validation"]
    tools.train("finished", *flags).ok()
    folder = tools.folder / "finished"
    saved = {path: path.read_bytes() for path in folder.iterdir()}
    found = tools.train("finished", *flags).ok()
    assert "before its first update due to num_updates: 4 >= max_update: 4" in found.out and not found.losses()
    assert {path: path.read_bytes() for path in folder.iterdir()} == saved


def test_checkpoint_needs_no_class_but_torch_s(tools, favor):
    """The parameters can be read safely, and without fairseq."""
    tools.command(
        *("python", "-c"),
        "import sys, torch; state = torch.load('favor/checkpoint_last.pt', weights_only=True); "
        "assert state['cfg']['model']['fwp_feature_map'] == 'favor', state['cfg']['model']; "
        "assert 'fairseq' not in sys.modules",
        fresh=True,
    ).ok()

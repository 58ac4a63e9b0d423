"""Several processes train what one does with --update-freq; docs/distributed.md says which test shows what."""

import socket
import sys
from pathlib import Path

import pytest
import torch

# FAVOR+ with the sum rule, delta and gated: every rule, and sites that differ.
ATTENTION = [
    *("--fwp-encoder-feature-map", "favor", "--fwp-encoder-d-dot", 32),
    *("--fwp-decoder-feature-map", "dpfp", "--fwp-decoder-update-rule", "delta"),
    *("--fwp-cross-feature-map", "dpfp", "--fwp-cross-update-rule", "gated"),
]
# Processes that accumulate draw dropout for all batches in turn, those side by side each from the start.
NO_DROPOUT = ["--dropout", 0]
UPDATES = 10  # an epoch is 8 updates of 2 batches, the last one of 1


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def flags(tools, save_dir: str, updates: int, *more) -> list:
    return [
        *(*tools.training, *NO_DROPOUT, *ATTENTION, "--save-dir", save_dir, "--max-update", updates),
        *("--disable-validation", "--no-epoch-checkpoints", *more),
    ]


def by_hand(tools, processes: int, arguments: list, **keywords):
    arguments = [
        *(*arguments, "--distributed-world-size", processes, "--distributed-no-spawn"),
        *("--distributed-init-method", f"tcp://localhost:{free_port()}", "--distributed-rank"),
    ]
    return tools.run_together([("train", [*arguments, rank]) for rank in range(processes)], **keywords)


def parameters(tools, save_dir: str) -> dict:
    return tools.load(f"{save_dir}/checkpoint_last.pt")["model"]


def assert_equal(found: dict, expected: dict, tolerance: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=name)


@pytest.fixture(scope="module")
def alone(tools):
    """One process, two batches an update."""
    return tools.run("train", *flags(tools, "alone", UPDATES, "--update-freq", 2)).ok()


def test_torchrun(tools, alone):
    """The real command; --ddp-backend and --distributed-backend are left at fairseq's defaults."""
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", 2]
    program = Path(sys.executable).parent / "fairseq-train"
    found = tools.command(*torchrun, program, *flags(tools, "torchrun", UPDATES)).ok()
    assert (found.losses(), found.losses("gnorm")) == (alone.losses(), alone.losses("gnorm"))
    assert_equal(parameters(tools, "torchrun"), parameters(tools, "alone"))


def test_by_hand_and_legacy_ddp(tools, alone):
    found = by_hand(tools, 2, flags(tools, "by-hand", UPDATES, "--ddp-backend", "legacy_ddp"))
    assert [process.ok().losses() for process in found] == [alone.losses(), []]
    assert_equal(parameters(tools, "by-hand"), parameters(tools, "alone"))


def test_srun_with_four_processes(tools):
    """What srun tells the tasks of two machines with two each; scontrol is a stand-in, both machines are this one."""
    scontrol = tools.folder / "slurm/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text("#!/bin/sh\necho localhost\necho localhost\n")
    scontrol.chmod(0o755)
    slurm = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "2"}
    prelude = f"import os; os.environ |= {slurm}; os.environ['PATH'] = {str(scontrol.parent)!r} + ':/usr/bin:/bin'\n"
    four = flags(tools, "srun", 3, "--distributed-world-size", 4, "--distributed-port", free_port())
    tasks = [
        ("train", four, f"os.environ |= {{'SLURM_PROCID': '{rank}', 'SLURM_LOCALID': '{rank % 2}'}}\n")
        for rank in range(4)
    ]
    found = tools.run_together(tasks, prelude=prelude)
    alone = tools.run("train", *flags(tools, "alone-4", 3, "--update-freq", 4)).ok()
    assert [process.ok().losses() for process in found] == [alone.losses(), [], [], []]
    # Four numbers are added up in another order.
    assert_equal(parameters(tools, "srun"), parameters(tools, "alone-4"), tolerance=1e-6)


def test_goes_on_with_another_number_of_processes(tools, alone):
    """In the middle of an epoch, from two to one to two: every batch comes once."""
    [process.ok() for process in by_hand(tools, 2, flags(tools, "changing", 3))]
    one = tools.run("train", *flags(tools, "changing", 6, "--update-freq", 2)).ok()
    two = by_hand(tools, 2, flags(tools, "changing", UPDATES))[0].ok()
    assert one.losses() == alone.losses()[3:6] and two.losses() == alone.losses()[6:]
    assert_equal(parameters(tools, "changing"), parameters(tools, "alone"))


# Rank 1 is killed before its third update.
KILL = """
import os, signal, sys
from fairseq.trainer import Trainer
train_step = Trainer.train_step
def train_or_die(self, samples):
    if sys.argv[-1] == "1" and self.get_num_updates() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(self, samples)
Trainer.train_step = train_or_die
"""


def test_a_killed_process_ends_the_others(tools):
    """And layers that an update drops need --find-unused-parameters, with fairseq's default --ddp-backend."""
    dropping = ["--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5, "--find-unused-parameters"]
    saved, killed = by_hand(
        tools, 2, flags(tools, "killed", UPDATES, *dropping, "--save-interval-updates", 1), prelude=KILL
    )
    assert killed.status == -9 and len(saved.losses()) == 2
    assert "rank 0 lost another process of this training" in saved.error
    assert tools.load("killed/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 2


def test_dropped_layers_need_a_flag(tools):
    found = by_hand(tools, 2, flags(tools, "dropped", UPDATES, "--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5))
    assert "--find-unused-parameters" in found[0].error

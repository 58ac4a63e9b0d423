"""Several processes train the same model as one with --update-freq. docs/distributed.md refers to these tests."""

import shlex
import socket
import time

import pytest
import torch

from tests.pages import block

pytestmark = pytest.mark.slow

# Three of the four rules, and a different attention at each site; FAVOR+ has the sum rule.
ATTENTION = [
    *("--fwp-encoder", "favor,d-dot=32", "--fwp-decoder", "dpfp,update-rule=delta", "--fwp-cross", "gated"),
]
# With --update-freq, one random generator draws dropout for all batches; with several processes, each has its own.
NO_DROPOUT = ["--dropout", 0]
# Parameters of several megabytes, and so several buckets. With a small epsilon, Adam's first steps would depend on the
# signs of gradients only, even of tiny ones.
LARGER = [
    *("--encoder-embed-dim", 128, "--decoder-embed-dim", 128, "--encoder-ffn-embed-dim", 512),
    *("--checkpoint-activations", "--adam-eps", 1e-2),
]
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
    """Trains in one process with two batches for each update."""
    return tools.run("train", *flags(tools, "alone", UPDATES, "--update-freq", 2)).ok()


def documented(tools, lines: str, save_dir: str) -> str:
    """These lines of docs/distributed.md, with a path to the programs that they name."""
    assert lines.count("FLAGS --cpu") == 1
    lines = lines.replace("29500", str(free_port()))
    lines = lines.replace("FLAGS", shlex.join(map(str, flags(tools, save_dir, UPDATES))))
    return f"export PATH={shlex.quote(str(tools.forked.bin))}:$PATH\n{lines}"


def by_torchrun(tools, save_dir: str):
    return tools.command(
        "/bin/bash", "-c", documented(tools, block("docs/distributed.md", "torchrun --standalone"), save_dir)
    ).ok()


def in_background(tools, save_dir: str):
    """The shell says which processes the lines start, and with which arguments."""
    said = """fairseq-train() { printf '%q ' "$OMP_NUM_THREADS" "$@" | sed 's/$/\\n/'; }\n"""
    lines = documented(tools, block("docs/distributed.md", "for rank in 0 1"), save_dir)
    started = sorted(map(shlex.split, tools.command("/bin/bash", "-c", said + lines).ok().out.splitlines()))
    assert [words[0] for words in started] == ["1", "1"]
    first, second = tools.run_together([("train", words[1:]) for words in started])
    second.ok()
    return first.ok()


@pytest.mark.parametrize("run", [by_torchrun, in_background], ids=["torchrun", "by-hand"])
def test_documented_lines(tools, alone, run):
    """--ddp-backend and --distributed-backend have fairseq's defaults."""
    found = run(tools, run.__name__)
    assert (found.losses(), found.losses("gnorm")) == (alone.losses(), alone.losses("gnorm"))
    assert_equal(parameters(tools, run.__name__), parameters(tools, "alone"))


def test_srun_with_four_processes(tools):
    """The processes have the variables of srun for two machines with two tasks each; both are this machine.

    scontrol is a stand-in.
    """
    scontrol = tools.folder / "slurm/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text("#!/bin/sh\necho localhost\necho localhost\n")
    scontrol.chmod(0o755)
    slurm = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "2"}
    prelude = f"import os; os.environ |= {slurm}; os.environ['PATH'] = {str(scontrol.parent)!r} + ':/usr/bin:/bin'\n"
    buckets = ["--bucket-cap-mb", 1, "--gradient-as-bucket-view"]
    four = flags(tools, "srun", 3, *LARGER, *buckets, "--distributed-world-size", 4, "--distributed-port", free_port())
    tasks = [
        ("train", four, f"os.environ |= {{'SLURM_PROCID': '{rank}', 'SLURM_LOCALID': '{rank % 2}'}}\n")
        for rank in range(4)
    ]
    found = tools.run_together(tasks, prelude=prelude)
    alone = tools.run("train", *flags(tools, "alone-4", 3, *LARGER, "--update-freq", 4)).ok()
    assert [process.ok().losses() for process in found] == [alone.losses(), [], [], []]
    # Four numbers are added in another order.
    assert_equal(parameters(tools, "srun"), parameters(tools, "alone-4"), tolerance=1e-6)


def test_goes_on_with_another_number_of_processes(tools, alone):
    """In the middle of an epoch, the number changes from two to one and back: every batch is used once."""
    [process.ok() for process in by_hand(tools, 2, flags(tools, "changing", 3, "--ddp-backend", "legacy_ddp"))]
    one = tools.run("train", *flags(tools, "changing", 6, "--update-freq", 2)).ok()
    two = by_hand(tools, 2, flags(tools, "changing", UPDATES))[0].ok()
    assert one.losses() == alone.losses()[3:6] and two.losses() == alone.losses()[6:]
    assert_equal(parameters(tools, "changing"), parameters(tools, "alone"))


# Rank 1 is killed before its third update.
KILL = """
import os, pathlib, signal, sys
from fairseq.trainer import Trainer
train_step = Trainer.train_step
def train_or_die(self, samples):
    if sys.argv[-1] == "1" and self.get_num_updates() == 2:
        pathlib.Path("killed.now").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(self, samples)
Trainer.train_step = train_or_die
"""


def test_a_killed_process_ends_the_others(tools):
    """Layer drop is used too, with --find-unused-parameters, which fairseq's default --ddp-backend needs for it."""
    dropping = ["--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5, "--find-unused-parameters"]
    saved, killed = by_hand(
        tools, 2, flags(tools, "killed", UPDATES, *dropping, "--save-interval-updates", 1), prelude=KILL
    )
    assert time.time() - (tools.folder / "killed.now").stat().st_mtime < 60
    assert killed.status == -9 and len(saved.losses()) == 2
    assert "rank 0 lost another process of this training" in saved.error
    assert tools.load("killed/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 2


def test_dropped_layers_need_a_flag(tools):
    found = by_hand(tools, 2, flags(tools, "dropped", UPDATES, "--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5))
    assert "--find-unused-parameters" in found[0].error

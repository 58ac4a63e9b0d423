"""The synthetic task and state tracking: experiments whose runs are programs of their own, one process each."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from scripts.common import records
from scripts.common.runner.work import called
from scripts.common.training import loss_problem
from scripts.experiments.state_tracking import recipe as state_tracking
from scripts.experiments.state_tracking import training as parity
from scripts.experiments.state_tracking.rows import NETS, RANGES
from scripts.experiments.synthetic import training as synthetic
from tests.pages import ROOT


def keys(path):
    return [(r["model"], r["S"], r["seed"]) for r in records.read_file(path)] if path.exists() else []


@pytest.mark.slow
def test_a_stopped_command_goes_on_and_doubles_no_record(tmp_path):
    """It is stopped in a point that takes hours. The same command then keeps the records and runs only the rest."""
    path = tmp_path / "synthetic.jsonl"
    command = [sys.executable, "-m", "scripts.experiments", "synthetic", "--preset", "capacity", "--out", tmp_path]
    endless = [*command, "--rows", "softmax_20", "favor,d-dot=128_200"]
    with subprocess.Popen(endless, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        # The loop ends early if the program does.
        said = "".join(iter(lambda: line if "runs ended" not in (line := run.stdout.readline()) else "", ""))
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM and "stopped; the same command" in output
    assert "softmax_20-seed1: loss 0.0" in said
    before = path.read_text()
    assert keys(path) == [("softmax", 20, 1)]
    done = subprocess.run([*command, "--rows", "softmax_20"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, path.read_text()) == (0, before) and "1 of 1 runs are recorded already" in done.stdout
    (record,) = records.read_file(path)
    assert record["table"] == "synthetic" and record["environment"]["python"] and record["threads"] == 1
    assert record["losses"][-1] <= 0.001


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_its_tool(tmp_path):
    # A shell in the background starts its commands with SIGINT ignored; a terminal does not.
    code = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from scripts.experiments.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "state_tracking", "--rows", "delta-lstm", "--out", tmp_path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes) as run:
        log = tmp_path / "delta-lstm-seed1/train.log"
        while run.poll() is None and not (log.exists() and "step 50" in log.read_text()):
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGINT
    assert errors.strip().endswith(
        "stopped; the same command continues: a model whose training was stopped is trained anew"
    )
    assert not list(tmp_path.glob("*.jsonl"))
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)  # no process of it is left


@pytest.mark.slow
def test_runs_that_failed_are_named_at_the_end_and_the_others_recorded(tmp_path, forked_python):
    (tmp_path / "elu-seed1").write_text("a file in the place of the folder")
    rows = ["--rows", "elu", "recurrent-delta", "--seeds", "1"]
    command = [forked_python.program, "-m", "scripts.experiments", "state_tracking", *rows, "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "elu-seed1: FAILED, the other runs go on" in done.stdout
    assert done.stderr.endswith("error: 1 of 2 runs failed: elu-seed1\n")
    (record,) = records.read_file(tmp_path / "parity.jsonl")
    assert record["model"] == "recurrent-delta" and record["stop"] == "solved"


def test_a_training_whose_loss_is_nan_stops_and_has_no_best_loss(monkeypatch):
    monkeypatch.setattr(synthetic, "evaluations", lambda *_: itertools.repeat(math.nan))
    record = synthetic.train(synthetic.Point(1, "elu", 20))
    assert (record["stop"], record["steps"], record["best_loss"]) == ("no progress", 1100, None)
    assert record["losses"] == [None] * 11
    assert "not finite" in loss_problem({"first_loss": 9.0, "last_loss": math.nan})


@pytest.mark.slow
@pytest.mark.parametrize("row", NETS + RANGES)
def test_every_net_of_state_tracking_trains(row, tmp_path):
    output = tmp_path / "result.json"
    called(lambda given: parity.train(**given), [json.dumps({"name": row, "seed": 1, "most_steps": 2}), str(output)])
    record = json.loads(output.read_text())
    key = state_tracking.EXPERIMENT.key(record)
    assert key == (row, 1, 2) and 0 <= record["long_accuracy"] <= 1 and record["stop"] in ("steps", "solved")

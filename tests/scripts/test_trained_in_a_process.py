"""The synthetic task and state tracking: experiments whose runs are programs of their own, one process each."""

import json
import signal
import subprocess
import sys

import pytest

from scripts.common import records
from scripts.common.runner.work import called
from scripts.experiments.state_tracking import recipe as state_tracking
from scripts.experiments.state_tracking import training as parity
from scripts.experiments.state_tracking.rows import NETS, RANGES
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
@pytest.mark.parametrize("row", NETS + RANGES)
def test_every_net_of_state_tracking_trains(row, tmp_path):
    output = tmp_path / "result.json"
    called(lambda given: parity.train(**given), [json.dumps({"name": row, "seed": 1, "most_steps": 2}), str(output)])
    record = json.loads(output.read_text())
    key = state_tracking.EXPERIMENT.key(record)
    assert key == (row, 1, 2) and 0 <= record["long_accuracy"] <= 1 and record["stop"] in ("steps", "solved")

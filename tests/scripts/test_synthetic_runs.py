"""Tests the commands of the synthetic task: their records, and how they continue."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.common import interruption
from scripts.common.folder import Folder
from scripts.reproduce.synthetic import grid, setting1, setting2, workers
from scripts.reproduce.synthetic.training import Point
from scripts.results import records
from scripts.results.synthetic_models import MODELS

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "scripts.reproduce.synthetic.setting1"]


def points(path):
    return [(r["model"], r["S"], r["seed"]) for r in map(json.loads, path.read_text().splitlines())]


def result(**changes):
    """Returns a record as workers report it."""
    return {
        "table": "synthetic", "setting": 1, "model": "softmax", "S": 4, "seed": 1, "length": 4, "batch": 32, "lr": 1e-3,
        "losses": [0.2, None, 0.0005], "best_loss": 0.0005, "best_step": 300, "steps": 300, "stop": "solved",
        "device": "cpu", "backends": [], "threads": 1, "seconds": 1.0, "cpu_seconds": 1.0, **changes,
    }  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_is_continued_and_no_record_doubled(tmp_path, monkeypatch):
    """The run is stopped in a point that never ends. The same command then keeps the records and runs only the rest."""
    path = tmp_path / "synthetic.jsonl"
    endless = [*COMMAND, "--models", "softmax", "favor64-sum", "--sizes", "4", "30", "--jobs", "1", "--out", tmp_path]
    run = subprocess.Popen(endless, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (path.exists() and points(path)):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 128 + signal.SIGTERM and "stopped; the same command" in output
    before = path.read_text()
    done = points(path)
    assert ("softmax", 4, 1) in done and ("favor64-sum", 30, 1) not in done

    monkeypatch.setattr(sys, "argv", ["setting1", "--models", "softmax", "--sizes", "4", "6", "--out", str(tmp_path)])
    monkeypatch.setattr(interruption, "stop_on_signals", lambda: None)
    options = grid.arguments("setting1", setting1.__doc__, setting1.SIZES, setting1.QUICK)
    assert grid.main(options) == 0
    assert path.read_text().startswith(before)
    assert sorted(points(path)) == sorted({*done, ("softmax", 4, 1), ("softmax", 6, 1)})
    record = json.loads(path.read_text().splitlines()[-1])
    assert record["table"] == "synthetic" and record["environment"]["python"] and record["losses"][-1] <= 0.001


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs setting 1 with fake workers; returns the exit status, the output and the points that were trained."""
    trained = []

    def train_all(given, *options):
        for point in given:
            trained.append(point)
            yield workers.Event(point, 100, 0.2)
            yield None
            yield workers.Event(point, 300, 0.0005, result(model=point.model, S=point.S, seed=point.seed))

    monkeypatch.setattr(grid, "train_all", train_all)
    monkeypatch.setattr(interruption, "stop_on_signals", lambda: None)

    def run(*flags):
        trained.clear()
        monkeypatch.setattr(sys, "argv", ["setting1", "--out", str(tmp_path), *map(str, flags)])
        options = grid.arguments("setting1", setting1.__doc__, setting1.SIZES, setting1.QUICK)
        status = grid.main(options)
        return status, "".join(capsys.readouterr()), list(trained)

    run.path = tmp_path / "synthetic.jsonl"
    return run


def test_recorded_points_are_skipped(command):
    wanted = [Point(1, "softmax", S) for S in (40, 60)]
    status, output, trained = command("--models", "softmax", "--sizes", 40, 60)
    assert status == 0 and trained == wanted
    assert "[1/2] softmax S=40: loss 0.0005, solved after 300 steps, 1 s; about" in output
    assert output.splitlines()[-1] == "[2/2] softmax S=60: loss 0.0005, solved after 300 steps, 1 s"
    assert points(command.path) == [("softmax", 40, 1), ("softmax", 60, 1)]
    status, output, trained = command("--models", "softmax", "--sizes", 40, 60, 80)
    assert status == 0 and trained == [Point(1, "softmax", 80)] and "3 points, 2 of them recorded" in output
    assert command("--models", "softmax", "--sizes", 20, "--seed", 2)[2] == [Point(1, "softmax", 20, 2)]
    assert len(points(command.path)) == 4


def test_a_point_that_another_run_has_recorded_meanwhile_is_not_doubled(command, monkeypatch):
    genuine = grid.train_all

    def meanwhile(given, *options):
        for event in genuine(given, *options):
            if event is not None and event.record is not None:
                records.append(command.path, event.record)
            yield event

    monkeypatch.setattr(grid, "train_all", meanwhile)
    assert command("--models", "softmax", "--sizes", 20)[0] == 0
    assert points(command.path) == [("softmax", 20, 1)]


def test_one_run_at_a_time_in_a_folder(command):
    with Folder(command.path.parent, ()).locked():
        status, output, trained = command("--models", "softmax", "--sizes", 20)
    assert status == 1 and "in use" in output and not trained


def test_a_record_that_is_no_point_stops_the_run(command):
    command.path.write_text('{"table": "synthetic"}\n')
    status, output, trained = command("--models", "softmax", "--sizes", 20)
    assert status == 1 and f"{command.path}:1" in output and not trained


def test_no_record_from_a_changed_checkout(command, monkeypatch):
    for dirty in (True, None):
        monkeypatch.setattr(records, "environment", lambda found=dirty: {"dirty": found})
        status, output, trained = command("--record", "--models", "softmax", "--sizes", 20)
        assert status == 1 and "--record: expected a clean git checkout" in output and not trained


def test_what_cannot_be_meant_is_refused(command, capsys):
    for flags, words in (
        (("--quick", "--sizes", 20), "--quick"),
        (("--jobs", 0), "--jobs 0: expected 1"),
        (("--sizes", 0), "--sizes 0: expected 1"),
        (("--models", "tanh-fwm"), "tanh-fwm"),
    ):
        with pytest.raises(SystemExit) as ended:
            command(*flags)
        assert ended.value.code == 2 and words in capsys.readouterr().err


def test_grids_are_the_papers():
    assert list(setting1.SIZES) == list(range(20, 620, 20)) and list(setting2.SIZES) == list(range(20, 220, 20))
    for number, setting in ((1, setting1), (2, setting2)):
        assert set(setting.QUICK) <= set(MODELS[number])
        assert all(set(sizes) <= set(setting.SIZES) for sizes in setting.QUICK.values())


@pytest.mark.slow
@pytest.mark.parametrize("program", ["setting1", "setting2"])
def test_a_program_is_called_by_its_path_or_as_a_module(program, tmp_path, forked_python):
    path = ROOT / f"scripts/reproduce/synthetic/{program}.py"
    module = ["-m", f"scripts.reproduce.synthetic.{program}"]
    ways = [([str(path)], tmp_path)]
    if program == "setting1":  # setting2 begins in the same way
        ways.append((module, ROOT))
    for words, folder in ways:
        done = subprocess.run([forked_python.program, *words, "--help"], cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: ")


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_run(forked_spawn):
    """The device does not exist, so the process ends with an exception. The iteration must end too."""
    with pytest.raises(workers.WorkerError, match="exit status 1"):
        list(workers.train_all([Point(1, "softmax", 4)], 1, "nowhere", "auto"))

"""Tests how an experiment is carried out, by the example of BLEU over d_dot with fake tools."""

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from scripts.common import commands as common
from scripts.common import process, records
from scripts.common.commands import flags_of
from scripts.common.folder import RecipeError
from scripts.common.runner import gpus, parallel
from scripts.data import corpus
from scripts.experiments.bleu_vs_d_dot import recipe
from scripts.results.__main__ import main as results
from tests.scripts.recipe_runs import alive, calls, ends, hanging, records_in

ROOT = process.ROOT


def test_tools_run_in_the_running_interpreter():
    """So an experiment runs in any environment, also in one that is not active."""
    assert {ROOT / words[0] for words in common.TOOLS.values()} == {Path(sys.executable)}


def test_gpus_are_shared_out():
    assert gpus.shares((), 2, True) == [(), ()]
    assert gpus.shares((0, 1, 2, 3), 1, True) == [(0, 1, 2, 3)]
    assert gpus.shares((0, 1, 2, 3), 2, True) == [(0, 2), (1, 3)]
    assert gpus.shares((0, 1), 4, True) == [(0,), (1,), (0,), (1,)]
    # A run whose preset is not distributed gets one GPU only.
    assert gpus.shares((0, 1, 2, 3), 2, False) == [(0,), (1,)]


def test_gpus_keep_the_names_that_they_have_outside(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-8f")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    given = types.SimpleNamespace(gpus=None, cpu=False, preset=types.SimpleNamespace(on_a_cpu=None))
    assert gpus.chosen(given) == ("2", "GPU-8f")


def test_runs_go_in_parallel_and_a_failed_one_stops_no_other():
    together, seen = threading.Barrier(2, timeout=30), []

    def do(run, devices):
        together.wait()
        seen.append((run.name, devices))
        if run.name == "b":
            raise RecipeError("pretended")

    said = []
    runs = [types.SimpleNamespace(name=name) for name in "abcd"]
    failures = parallel.carry_out(runs, [(0,), (1,)], do, said.append, threading.Event())
    assert sorted(name for name, _ in seen) == list("abcd") and {gpus for _, gpus in seen} == {(0,), (1,)}
    assert [(name, str(error)) for name, error in failures.items()] == [("b", "pretended")]
    assert any("b: FAILED" in line for line in said) and "4 of 4 runs ended" in said[-1]


@pytest.fixture
def root(fake_root, monkeypatch):
    def prepare(data):
        (data / "bin").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(corpus, "prepare", prepare)
    return fake_root


SMOKE = ["--preset", "smoke", "--cpu", "--rows", "softmax", "dpfp-256"]
FILE = "bleu_vs_d_dot.jsonl"
OWN = Path("runs/bleu_vs_d_dot/smoke") / FILE
ALL = ["fairseq-train", "fwp", "fairseq-generate", "fwp"]


def test_every_row_is_recorded_once_and_not_run_again(root, capsys):
    assert recipe.main(SMOKE) == 0
    assert calls(root) == ALL * 2
    found = records_in(root / OWN)
    assert [(r["row"], r["d_dot"], r["update_rule"], r["normalizer"]) for r in found] == [
        ("softmax", None, None, None),
        ("dpfp-256", 256, "sum", "attention"),
    ]
    expected = {
        "table": "bleu_vs_d_dot", "preset": "smoke", "feature_map": "dpfp", "seed": 1, "updates": 30, "bleu": 31.4,
        "parameters": 1234, "valid_loss": 5.0, "valid_bleu": None, "signature": "BLEU|nrefs:1|case:mixed",
        "train_seconds": 7,
    }  # fmt: skip
    assert expected.items() <= found[1].items()
    assert found[1]["decode_peak_mib"] > 1 and found[1]["environment"]["commit"]
    assert flags_of(found[1]["train_command"])["--fwp-d-dot"] == "256"
    output = capsys.readouterr().out
    assert "dpfp-256-seed1: epoch 2, 20 of" in output and "dpfp-256-seed1: BLEU 31.40" in output
    assert "1 CPU process x 1 batches x 500 tokens = 500" in output
    assert not (root / "benchmarks").exists()

    assert recipe.main(SMOKE) == 0
    assert calls(root) == [] and records_in(root / OWN) == found
    assert "2 of 2 runs are recorded already and skipped" in capsys.readouterr().out
    other = [*SMOKE[:-1], "--out", str(root / "other")]
    assert recipe.main([*other, "--", "--lr", "1"]) == 0 and recipe.main(other) == 1
    assert "--lr: expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["bleu_vs_d_dot", "by_site", "conversion", "documents", "documents_conversion", "language_models"]
)
def test_a_rehearsal_has_every_row_and_its_help_names_them(name, capsys):
    """But for those that differ in the length of the training alone."""
    recipe = importlib.import_module(f"scripts.experiments.{name}.recipe")
    presets = recipe.EXPERIMENT.presets
    every = {row.name for preset in presets.values() for row in preset.rows if not row.name.endswith("-tokens")}
    for size in {"smoke", "rehearsal"} & presets.keys():
        assert {row.name for row in presets[size].rows} == every
    with pytest.raises(SystemExit):
        recipe.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(row in text for row in every)


def test_table_and_plot_of_a_rehearsal_are_made_by_the_commands_of_the_real_ones(root, capsys):
    assert recipe.main(["--preset", "smoke", "--cpu", "--rows", "softmax", "hybrid*", "dpfp-256"]) == 0
    capsys.readouterr()
    picture = root / "smoke.svg"
    assert results(["bleu_vs_d_dot-smoke", "--results", str(root / OWN.parent), "--plot", str(picture)]) == 0
    shown = [line.split(" | ")[:4] for line in capsys.readouterr().out.splitlines() if "31.40" in line]
    assert shown == [
        ["| softmax", "–", "–", "31.40"],
        ["| dpfp", "sum", "256", "31.40"],
        ["| hybrid", "delta", "natural", "31.40"],
        ["| hybrid", "gated_delta", "natural", "31.40"],
    ]
    assert all(f">{name}</text>" in picture.read_text() for name in ("softmax", "hybrid", "hybrid-gated", "DPFP"))


def test_failed_row_is_reported_at_the_end_with_its_log_and_run_again(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "fail in epoch 2")
    monkeypatch.setenv("FAKE_IN", "softmax-seed1")
    assert recipe.main(SMOKE) == 1
    assert [r["row"] for r in records_in(root / OWN)] == ["dpfp-256"]
    captured = capsys.readouterr()
    assert "softmax-seed1: FAILED, the other runs go on" in captured.out
    end = captured.err
    assert "RuntimeError: pretended" in end and "softmax-seed1/train.log" in end
    assert end.rstrip().endswith("error: 1 of 2 runs failed: softmax-seed1")
    calls(root)
    monkeypatch.delenv("FAKE")
    assert recipe.main(SMOKE) == 0
    assert calls(root) == ALL
    assert [r["row"] for r in records_in(root / OWN)] == ["dpfp-256", "softmax"]


@pytest.mark.parametrize(
    "line, problem",
    [
        (["--preset", "big"], "--preset"),
        (["--preset", "smoke", "--rows", "elu-65"], "--rows elu-65: expected some of softmax, hybrid"),
        (["--preset", "smoke", "--seeds", "1", "1"], "--seeds 1 1"),
        (["--preset", "smoke", "--record"], "--record"),
        (["--preset", "multi30k", "--record", "--", "--lr", "1"], "--record"),
        (["--preset", "wmt14", "--gpus", "two"], "--gpus two"),
        (["--preset", "wmt14", "--gpus", "0,0"], "--gpus 0,0: expected different numbers"),
        (["--preset", "smoke", "--compare", "dpfp-*"], "--compare dpfp-*: expected one of softmax, hybrid"),
        (["--preset", "smoke", "--compare", "softmax", "--", "--lr", "1"], "flags after --"),
        (["--preset", "smoke", "--compare", "softmax", "--jobs", "2"], "expected it without --jobs 2"),
        (["--preset", "smoke", "--", "--update-freq", "8"], "--update-freq after --"),
        (["--preset", "smoke", "--", "--seed=8"], "--seed after --"),
        (["--preset", "multi30k", "--jobs", "0"], "error: --jobs 0: expected 1 or more\n"),
    ],
)
def test_wrong_arguments_are_refused(line, problem, capsys):
    with pytest.raises(SystemExit) as stop:
        recipe.main(line)
    assert stop.value.code == 2 and problem in capsys.readouterr().err


def as_a_process(root, **variables):
    """Starts the experiment as a separate process, which a test can kill. It repeats the patches of the fixture.

    It is told its environment, for which it would import torch, which takes longer than all else that it does.
    """
    program = f"""
import signal, sys
from pathlib import Path
# A shell in the background starts its commands with SIGINT ignored; a terminal does not.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(ROOT)!r})
from scripts.common import commands, process
from scripts.data import corpus
from scripts.common import records
from scripts.experiments.bleu_vs_d_dot import recipe
records.environment = lambda: {records.environment()!r}
commands.TOOLS, process.ROOT = {common.TOOLS!r}, Path({str(root)!r})
corpus.prepare = lambda data: None
sys.exit(recipe.main({SMOKE!r}))
"""
    return subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | variables, start_new_session=True, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_killed_in_the_middle_it_repeats_no_work_and_doubles_no_record(root):
    log = root / "runs/bleu_vs_d_dot/smoke/dpfp-256-seed1/train.log"
    with as_a_process(root, FAKE="hang after epoch 2", FAKE_IN="dpfp-256-seed1") as running:
        tool, deadline = hanging(root), time.monotonic() + 60
        while '"epoch": 2, "valid_loss"' not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)  # the program copies what the tool has written
        os.kill(running.pid, signal.SIGKILL)
        running.wait(timeout=30)
    assert ends(tool), "the training goes on without its caller"
    assert calls(root) == [*ALL, "fairseq-train"]
    assert [r["row"] for r in records_in(root / OWN)] == ["softmax"]

    assert recipe.main(SMOKE) == 0
    assert calls(root) == ALL
    assert [log.read_text().count(f'"epoch": {epoch}, "valid_loss"') for epoch in (1, 2, 3)] == [1, 1, 1]
    found = records_in(root / OWN)
    assert [r["row"] for r in found] == ["softmax", "dpfp-256"]
    assert found[1]["updates"] == 30 and found[1]["train_seconds"] == 14
    # Killed after the record, it is not recorded again.
    for marker in root.rglob("done-*.json"):
        marker.unlink()
    assert recipe.main([*SMOKE, "--seeds", "1", "2"]) == 0
    assert [(r["row"], r["seed"]) for r in records_in(root / OWN)][2:] == [("softmax", 2), ("dpfp-256", 2)]


@pytest.mark.slow
# Ctrl-C on a terminal reaches the whole process group, and perhaps a tool long before its caller; `kill` reaches one
# process only. That is no failure, and no further run is started.
@pytest.mark.parametrize("number, at", [(signal.SIGTERM, "caller"), (signal.SIGINT, "group"), (signal.SIGINT, "tool")])
def test_stopped_from_outside_it_ends_its_tools(root, number, at):
    with as_a_process(root, FAKE="hang after epoch 1") as running:
        tool = hanging(root)
        if at == "group":
            os.killpg(running.pid, number)
        else:
            os.kill(tool if at == "tool" else running.pid, number)
        error = running.communicate(timeout=30)[1]
        assert running.returncode == 128 + number and "the same command continues" in error and "Traceback" not in error
    assert not alive(tool) and not (root / OWN).exists()
    assert calls(root).count("fairseq-train") == 1

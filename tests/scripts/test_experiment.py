"""Tests how runs share the GPUs, and which arguments an experiment refuses."""

import importlib
import threading
import types

import pytest

from scripts.common import records
from scripts.common.errors import RecipeError
from scripts.common.runner import gpus, parallel, reproduction
from scripts.experiments.bleu_vs_d_dot import recipe


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
        reproduction.main(recipe.EXPERIMENT, ["--help"])
    text = "".join(capsys.readouterr().out.split())  # long names are broken
    assert all(row in text for row in every)


@pytest.mark.parametrize("dirty", [True, None], ids=["changed", "unknown"])
def test_results_are_recorded_from_a_clean_checkout_alone(dirty, monkeypatch, tmp_path, capsys):
    environment = records.environment()
    monkeypatch.setattr(records, "environment", lambda: environment | {"dirty": dirty})
    monkeypatch.chdir(tmp_path)
    assert (
        reproduction.main(recipe.EXPERIMENT, ["--preset", "multi30k", "--cpu", "--record", "--out", str(tmp_path)]) == 1
    )
    assert "--record: expected a clean git checkout" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
        reproduction.main(recipe.EXPERIMENT, line)
    assert stop.value.code == 2 and problem in capsys.readouterr().err

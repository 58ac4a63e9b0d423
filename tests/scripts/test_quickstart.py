"""Tests the experiment `quickstart` from corpus to score with fake tools: what it runs, keeps and resumes."""

import json
import multiprocessing
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common import program
from scripts.common.commands import as_run, flags_of, printed
from scripts.data import corpus
from scripts.experiments.quickstart import recipe, rows
from scripts.translation import commands as translation
from scripts.translation.commands import Run
from tests.pages import ROOT
from tests.scripts.recipe_runs import calls, ends, hanging, records_in

BASELINE, HYBRID = (["--preset", "quickstart", "--rows", name] for name in ("baseline", "hybrid"))
FILE = Path("runs/quickstart/quickstart/quickstart.jsonl")


def run_of(row=rows.BASELINE, preset=rows.QUICKSTART, more=()):
    return Run(preset, row, 1, Path("runs/x"), Path("data"), more=tuple(more))


def train(*words, **options):
    return translation.train(run_of(*words, **options), ())


def test_printed_command_is_the_command():
    for command in (train(), corpus.preprocess(Path("d")), translation.average(run_of())):
        assert shlex.split(printed(command).replace("\\\n", " ")) == as_run(command)


def test_nothing_is_left_untranslated():
    # By default fairseq leaves out a last batch of fewer than 8 sentences.
    for command in (train(), train(preset=rows.SMOKE), translation.generate(run_of(), ())):
        assert flags_of(command)["--required-batch-size-multiple"] == "1"


ALL = ["fairseq-preprocess", "fairseq-train", "fwp", "fairseq-generate", "fwp"]


def test_whole_run_leaves_a_record(root, capsys):
    assert recipe.main(HYBRID) == 0
    assert calls(root) == ALL
    (record,) = records_in(root / FILE)
    expected = {"bleu": 31.4, "parameters": 1234, "updates": 30, "valid_loss": 5.0, "seed": 1, "table": "quickstart"}
    expected |= {"feature_map": "elu", "update_rule": "delta", "arch": "fwp_transformer_tiny_hybrid"}
    assert expected.items() <= record.items()
    assert record["signature"] == "BLEU|nrefs:1|case:mixed" and 0 <= record["train_seconds"] < 60
    assert not (root / "benchmarks").exists()
    output = capsys.readouterr().out
    for text in ("BLEU 31.40", "BLEU|nrefs:1|case:mixed", "epoch 3, 30 of", "[4/4] score"):
        assert text in output
    # The corpus is shared by the models.
    assert recipe.main(BASELINE) == 0
    assert calls(root) == ALL[1:]
    assert [record["feature_map"] for record in records_in(root / FILE)] == ["elu", "softmax"]
    # A second call does nothing.
    assert recipe.main(BASELINE) == 0
    assert calls(root) == [] and "recorded already and skipped" in capsys.readouterr().out


def test_record_is_appended_on_request(root, checkout, capsys):
    for dirty in (True, None):
        checkout(dirty)
        assert recipe.main([*HYBRID, "--record"]) == 1 and calls(root) == []
        assert "--record: expected a clean git checkout" in capsys.readouterr().err
    checkout(False)
    assert recipe.main([*HYBRID, "--record"]) == 0
    for _ in range(2):
        assert recipe.main(["--record", *BASELINE]) == 0
    lines = (root / "benchmarks/results/quickstart.jsonl").read_text().splitlines()
    assert [json.loads(line)["feature_map"] for line in lines] == ["elu", "softmax"]


def test_a_run_that_changed_code_has_worked_on_is_no_result(root, checkout, monkeypatch, capsys):
    checkout(True, "a" * 40)
    monkeypatch.setenv("FAKE", "fail in epoch 2")
    assert recipe.main(HYBRID) == 1
    monkeypatch.delenv("FAKE")
    checkout(False, "b" * 40)
    assert recipe.main([*HYBRID, "--record"]) == 1
    assert "found uncommitted changes" in capsys.readouterr().err
    assert not (root / "benchmarks/results/quickstart.jsonl").exists()


@pytest.mark.parametrize(
    "tool, of, stage",
    [("fairseq-preprocess", "", 0), ("fwp", "average", 2), ("fairseq-generate", "", 3), ("fwp", "bleu", 4)],
    ids=["corpus", "averaging", "decoding", "scoring"],
)
def test_killed_in_a_stage_it_does_the_stage_again(root, monkeypatch, tool, of, stage):
    """The tool has written half of its file; the training's stage is in test_experiment.py."""
    monkeypatch.setenv("FAKE", f"hang in {tool}")
    monkeypatch.setenv("FAKE_IN", of)
    running = multiprocessing.get_context("fork").Process(target=recipe.main, args=(HYBRID,))
    running.start()
    tool = hanging(root)
    running.kill()
    running.join()
    assert ends(tool) and calls(root) == ALL[: stage + 1]

    monkeypatch.delenv("FAKE")
    assert recipe.main(HYBRID) == 0
    assert calls(root) == ALL[stage:]
    assert [record["bleu"] for record in records_in(root / FILE)] == [31.4]


def test_it_fails_when_the_loss_is_not_finite(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "nan")
    assert recipe.main(HYBRID) == 1
    assert "hybrid-seed1 failed: the training loss is not finite" in capsys.readouterr().err
    assert "fairseq-generate" not in calls(root)


def test_out_is_relative_to_the_callers_folder(root, monkeypatch):
    (root / "inside").mkdir()
    monkeypatch.setenv("FWP_CALLER_FOLDER", str(root / "inside"))
    assert program.from_root(Path("x")) == Path("inside/x")
    assert program.from_root(Path("../../x")) == root.parent / "x"


@pytest.mark.slow
def test_the_quick_start_runs_what_users_run(tmp_path):
    """Really, with few lines and updates; called again, it prepares and converts nothing else."""
    command = [sys.executable, "-m", "scripts.quickstart", "--smoke", "--cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    run = re.findall(r"^\$ (?:echo .*\| ?\n?\$ )?fwp (\w+)", done.stdout, re.M)
    assert run == ["train", "convert", "train", "bleu", "table", "translate"]
    for name in ("softmax", "fast-weights"):
        assert len((tmp_path / name / "translations.de").read_text().splitlines()) == 20
        assert (tmp_path / name / "curve.svg").is_file()
    assert "Baseline:" in done.stdout and "(that of --finetune-from)" in done.stdout
    assert "fwp_transformer_tiny_hybrid" not in done.stdout
    prepared = subprocess.run([*command[:-2], "--prepare", "--out", str(tmp_path / "x")], cwd=ROOT, capture_output=True)
    assert prepared.returncode == 0
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["texts"]

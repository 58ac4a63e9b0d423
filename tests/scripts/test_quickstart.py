"""Tests the quick start from corpus to score with fake tools: what it runs, keeps and resumes."""

import json
import multiprocessing
import shlex
from pathlib import Path

import pytest

from scripts.common import program
from scripts.common.commands import as_run, flags_of, printed
from scripts.data import corpus
from scripts.experiments.quickstart import recipe, rows
from scripts.translation import commands as translation
from scripts.translation.commands import Run
from tests.scripts.recipe_runs import calls, ends, hanging, records_in

SCRATCH = ["--from-scratch"]
FILE = Path("runs/quickstart/quickstart.jsonl")


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


def test_models_have_names_of_their_own():
    lines = (["--baseline"], ["--smoke"], [*SCRATCH, "--smoke"], SCRATCH, [])
    found = [recipe.parse(line) for line in lines]
    assert [given.rows[0].name for given in found] == [
        *("baseline", "smoke-baseline", "smoke-hybrid", "hybrid", "baseline")
    ]
    assert [given.convert for given in found] == [False, True, False, False, True]


ALL = ["fairseq-preprocess", "fairseq-train", "fwp", "fairseq-generate", "fwp"]


def test_whole_run_leaves_a_record_and_shows_the_models_side_by_side(root, capsys):
    assert recipe.main(SCRATCH) == 0
    assert calls(root) == ALL
    (record,) = records_in(root / FILE)
    expected = {"bleu": 31.4, "parameters": 1234, "updates": 30, "valid_loss": 5.0, "seed": 1, "table": "quickstart"}
    expected |= {"feature_map": "elu", "update_rule": "delta", "arch": "fwp_transformer_tiny_hybrid"}
    assert expected.items() <= record.items()
    assert record["signature"] == "BLEU|nrefs:1|case:mixed" and 0 <= record["train_seconds"] < 60
    assert not (root / "benchmarks").exists()
    output = capsys.readouterr().out
    for text in ("BLEU 31.40", "BLEU|nrefs:1|case:mixed", "epoch 3, 30 of", "[4/4] score", "fairseq-interactive"):
        assert text in output
    # The corpus is shared by the models.
    assert recipe.main(["--baseline"]) == 0
    assert calls(root) == ALL[1:]
    table = capsys.readouterr().out.split("ended\n")[-1]
    assert table.count("31.40") == 2 and "softmax (fwp_transformer_tiny)" in table and "tiny_hybrid" in table
    # A second call does nothing, and shows the same.
    assert recipe.main(["--baseline"]) == 0
    output = capsys.readouterr().out
    assert calls(root) == [] and "recorded already and skipped" in output and output.count("31.40") == 2


def test_record_is_appended_on_request(root, checkout, capsys):
    for dirty in (True, None):
        checkout(dirty)
        assert recipe.main([*SCRATCH, "--record"]) == 1 and calls(root) == []
        assert "--record: expected a clean git checkout" in capsys.readouterr().err
    checkout(False)
    assert recipe.main([*SCRATCH, "--record"]) == 0
    for _ in range(2):
        assert recipe.main(["--record", "--baseline"]) == 0
    lines = (root / "benchmarks/results/quickstart.jsonl").read_text().splitlines()
    assert [json.loads(line)["feature_map"] for line in lines] == ["elu", "softmax"]


def test_a_run_that_changed_code_has_worked_on_is_no_result(root, checkout, monkeypatch, capsys):
    checkout(True, "a" * 40)
    monkeypatch.setenv("FAKE", "fail in epoch 2")
    assert recipe.main(SCRATCH) == 1
    monkeypatch.delenv("FAKE")
    checkout(False, "b" * 40)
    assert recipe.main([*SCRATCH, "--record"]) == 1
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
    running = multiprocessing.get_context("fork").Process(target=recipe.main, args=(SCRATCH,))
    running.start()
    tool = hanging(root)
    running.kill()
    running.join()
    assert ends(tool) and calls(root) == ALL[: stage + 1]

    monkeypatch.delenv("FAKE")
    assert recipe.main(SCRATCH) == 0
    assert calls(root) == ALL[stage:]
    assert [record["bleu"] for record in records_in(root / FILE)] == [31.4]


def test_it_fails_when_the_loss_is_not_finite(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "nan")
    assert recipe.main(SCRATCH) == 1
    assert "hybrid-seed1 failed: the training loss is not finite" in capsys.readouterr().err
    assert "fairseq-generate" not in calls(root)


def test_out_is_relative_to_the_callers_folder(root, monkeypatch):
    (root / "inside").mkdir()
    monkeypatch.setenv("FWP_CALLER_FOLDER", str(root / "inside"))
    assert program.from_root(Path("x")) == Path("inside/x")
    assert program.from_root(Path("../../x")) == root.parent / "x"

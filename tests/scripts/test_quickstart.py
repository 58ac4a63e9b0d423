"""Tests the commands of the experiment `quickstart`, and runs the quick start of the README on few lines."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from scripts.common import process, program
from scripts.common.commands import as_run, flags_of, printed
from scripts.data import corpus
from scripts.experiments.quickstart import rows
from scripts.quickstart import parse
from scripts.translation import commands as translation
from scripts.translation.commands import TranslationRun
from tests.pages import ROOT


def run_of(row=rows.BASELINE, preset=rows.QUICKSTART, more=()):
    return TranslationRun(preset, row, 1, Path("runs/x"), Path("data"), more=tuple(more))


def train(*words, **options):
    return translation.train(run_of(*words, **options), ())


def test_printed_command_is_the_command():
    for command in (train(), corpus.preprocess(Path("d")), translation.average(run_of())):
        assert shlex.split(printed(command).replace("\\\n", " ")) == as_run(command)


def test_nothing_is_left_untranslated():
    # By default fairseq leaves out a last batch of fewer than 8 sentences.
    for command in (train(), train(preset=rows.SMOKE), translation.generate(run_of(), ())):
        assert flags_of(command)["--required-batch-size-multiple"] == "1"


def test_out_is_relative_to_the_callers_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inside").mkdir()
    monkeypatch.setenv("FWP_CALLER_FOLDER", str(tmp_path / "inside"))
    assert program.from_root(Path("x")) == Path("inside/x")
    assert program.from_root(Path("../../x")) == tmp_path.parent / "x"


def test_help_says_how_own_texts_are_trained_on(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    said = capsys.readouterr().out
    assert "--texts DIR --source LANGUAGE --target LANGUAGE --out DIR" in said.partition("\n\n")[0]
    assert "--baseline --minutes 20" in said


@pytest.mark.slow
def test_the_quick_start_runs_what_users_run(tmp_path, forked_python):
    """Really, with few lines and updates; called again, it prepares and converts nothing else."""
    command = [forked_python.program, "-m", "scripts.quickstart", "--smoke", "--cpu", "--out", str(tmp_path)]
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

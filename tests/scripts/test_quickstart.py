"""Tests the quick start from corpus to score with fake tools: what it runs, keeps, resumes and refuses."""

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.common import commands, process, program
from scripts.data import corpus, multi30k
from scripts.quickstart import arguments, model, settings
from tests.scripts.recipe_runs import calls, ends, hanging

quickstart = importlib.import_module("scripts.quickstart.__main__")
SCRATCH = ["--from-scratch"]


@pytest.fixture
def root(fake_root, monkeypatch):
    def make(data, say, joined=1):
        for path in corpus.outputs(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return {}

    monkeypatch.setattr(corpus, "make", make)
    monkeypatch.setattr(model, "device", lambda cpu: ["--cpu"])
    return fake_root


ALL = ["fairseq-preprocess", "fairseq-train", "fwp", "fairseq-generate", "fwp"]


def test_whole_run_leaves_translations_and_a_record(root, capsys):
    assert quickstart.main(SCRATCH) == 0
    assert calls(root) == ALL
    run = root / "runs/quickstart/parity"
    assert (run / "translations.de").read_text() == "".join(f"satz {i}\n" for i in range(1000))
    record = json.loads((run / "record.json").read_text())
    expected = {"bleu": 31.4, "parameters": 1234, "updates": 30, "valid_loss": 5.0, "seed": 1}
    expected |= {"feature_map": "elu, slots", "update_rule": "delta", "arch": "fwp_transformer_tiny_parity"}
    assert expected.items() <= record.items()
    assert record["signature"] == "BLEU|nrefs:1|case:mixed" and 0 <= record["train_seconds"] < 60
    assert not (root / "benchmarks").exists()
    output = capsys.readouterr().out
    assert "BLEU          31.40" in output and "BLEU|nrefs:1|case:mixed" in output
    assert "epoch 3, 30 of" in output
    for text in ("runs/quickstart/parity/checkpoints", "runs/quickstart/parity/translations.de", "fairseq-interactive"):
        assert text in output


def test_models_are_shown_side_by_side(root, capsys):
    hint = "--baseline trains softmax attention alike"
    quickstart.main(SCRATCH)
    output = capsys.readouterr().out
    assert output.count("31.40") == 2 and hint in output
    quickstart.main([*SCRATCH, "--smoke"])
    assert quickstart.main(["--baseline"]) == 0
    output = capsys.readouterr().out
    head, *lines = output.split("Models trained in runs/quickstart:\n")[-1].split("\n\n")[0].splitlines()
    assert head.split()[:3] == ["model", "attention", "BLEU"] and hint not in output.split(head)[-1]
    assert sorted(line.split()[0] for line in lines) == ["baseline", "parity"]
    assert all("31.40" in line and "1,234" in line for line in lines)


def test_second_run_does_nothing_and_says_so(root, capsys):
    quickstart.main(SCRATCH)
    calls(root)
    capsys.readouterr()
    assert quickstart.main(SCRATCH) == 0
    output = capsys.readouterr().out
    assert calls(root) == [] and output.count("already done") == 6 and "31.40" in output


def test_the_softmax_model_is_converted_by_default(root, monkeypatch):
    asked = []
    monkeypatch.setattr(quickstart.stages, "run", asked.append)
    assert quickstart.main(["--smoke", "--seed", "2", "--cpu", "--out", "there"]) == 0
    (options,) = asked
    assert (options.name, options.seed, str(options.out)) == ("smoke-finetune-seed2", 2, "there")
    assert options.smoke and options.cpu and not options.record and options.checkpoint is None
    assert options.command[0] == "scripts/quickstart.sh" and "hedgehog" in options.conversion


def test_baseline_and_from_scratch_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        arguments.parse(["--baseline", "--from-scratch"])
    assert "--from-scratch: not allowed with argument --baseline" in capsys.readouterr().err


def test_data_is_shared_by_the_variants(root):
    quickstart.main(SCRATCH)
    calls(root)
    assert quickstart.main(["--baseline"]) == 0
    assert calls(root) == ALL[1:]


def test_record_is_appended_on_request(root, checkout, capsys):
    for dirty in (True, None):
        checkout(dirty)
        assert quickstart.main([*SCRATCH, "--record"]) == 1 and calls(root) == []
        assert "--record: expected a clean git checkout" in capsys.readouterr().err
    checkout(False)
    assert quickstart.main([*SCRATCH, "--record"]) == 0
    for _ in range(2):
        assert quickstart.main(["--record", "--baseline"]) == 0
    lines = (root / "benchmarks/results/quickstart.jsonl").read_text().splitlines()
    assert [json.loads(line)["feature_map"] for line in lines] == ["elu, slots", "softmax"]


def test_failed_training_shows_the_end_of_its_output_and_is_resumed(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "fail in epoch 2")
    assert quickstart.main(SCRATCH) == 1
    error = capsys.readouterr().err
    assert "fairseq-train failed (exit status 1)" in error and "RuntimeError: pretended" in error
    assert "runs/quickstart/parity/train.log" in error
    calls(root)

    monkeypatch.delenv("FAKE")
    assert quickstart.main(SCRATCH) == 0
    assert calls(root) == ALL[1:]
    assert "resuming from runs/quickstart/parity/checkpoints/checkpoint_last.pt" in capsys.readouterr().out
    # Only the missing epochs were trained, and the log holds both sessions.
    log = (root / "runs/quickstart/parity/train.log").read_text()
    assert [log.count(f'"epoch": {epoch}, "valid_loss"') for epoch in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="a tool outlives its killed caller elsewhere")
@pytest.mark.parametrize(
    "tool, of, stage",
    [("fairseq-preprocess", "", 0), ("fwp", "average", 2), ("fairseq-generate", "", 3), ("fwp", "bleu", 4)],
    ids=["corpus", "averaging", "decoding", "scoring"],
)
def test_killed_in_a_stage_it_does_the_stage_again(root, monkeypatch, tool, of, stage):
    """The tool has written half of its file; the training's stage is in test_reproduce.py."""
    monkeypatch.setenv("FAKE", f"hang in {tool}")
    monkeypatch.setenv("FAKE_IN", of)
    running = multiprocessing.get_context("fork").Process(target=quickstart.main, args=(SCRATCH,))
    running.start()
    tool = hanging(root)
    running.kill()
    running.join()
    assert ends(tool) and calls(root) == ALL[: stage + 1]

    monkeypatch.delenv("FAKE")
    assert quickstart.main(SCRATCH) == 0
    assert calls(root) == ALL[stage:]
    run = root / "runs/quickstart/parity"
    assert len((run / "translations.de").read_text().splitlines()) == 1000
    assert json.loads((run / "record.json").read_text())["bleu"] == 31.4


def test_lost_checkpoints_are_trained_again(root):
    quickstart.main(SCRATCH)
    calls(root)
    for path in (root / "runs/quickstart/parity/checkpoints").iterdir():
        path.unlink()
    assert quickstart.main(SCRATCH) == 0
    assert calls(root) == ALL[1:]
    assert (root / "runs/quickstart/parity/train.log").read_text().count("num. shared") == 1


def test_changed_training_is_refused_and_touches_nothing(root, capsys):
    quickstart.main(["--name", "x", "--", "--lr", "0.1"])
    calls(root)
    assert quickstart.main(["--name", "x", "--", "--lr", "0.2"]) == 1
    assert calls(root) == []
    assert "--lr: expected 0.2, actual 0.1" in capsys.readouterr().err
    assert quickstart.main(["--name", "y", "--", "--lr", "0.2"]) == 0


def test_changed_corpus_settings_are_refused(root, monkeypatch, capsys):
    quickstart.main(SCRATCH)
    calls(root)
    monkeypatch.setattr(corpus, "VOCABULARY", 8000)
    assert quickstart.main(SCRATCH) == 1
    assert calls(root) == []
    assert "vocabulary: expected 8000, actual 4000" in capsys.readouterr().err


def test_changed_decoding_is_decoded_and_scored_again(root, monkeypatch):
    quickstart.main(SCRATCH)
    calls(root)
    monkeypatch.setitem(settings.DECODING, "--beam", 5)
    assert quickstart.main(SCRATCH) == 0
    assert calls(root) == ["fairseq-generate", "fwp"]


def test_missing_translations_are_an_error(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "drop")
    assert quickstart.main(SCRATCH) == 1
    assert "expected 1000 translations, actual 999" in capsys.readouterr().err
    assert not (root / "runs/quickstart/parity/translations.de").exists()


@pytest.mark.parametrize("options", [SCRATCH, [*SCRATCH, "--smoke"]], ids=["whole", "smoke"])
def test_it_fails_when_the_loss_is_not_finite(root, options, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "nan")
    assert quickstart.main(options) == 1
    name = "smoke-parity" if "--smoke" in options else "parity"
    assert f"{name}: the training loss is not finite" in capsys.readouterr().err
    assert "fairseq-generate" not in calls(root)


def test_missing_corpus_is_an_error_without_a_traceback(root, monkeypatch, capsys):
    def make(data, say, joined=1):
        raise multi30k.DataError("Multi30k is not on this machine")

    monkeypatch.setattr(corpus, "make", make)
    assert quickstart.main(SCRATCH) == 1
    assert capsys.readouterr().err == "error: Multi30k is not on this machine\n"


def test_out_is_relative_to_the_callers_folder(root, monkeypatch):
    (root / "inside").mkdir()
    monkeypatch.setenv("FWP_CALLER_FOLDER", str(root / "inside"))
    assert program.from_root(Path("x")) == Path("inside/x")
    assert program.from_root(Path("../../x")) == root.parent / "x"


# Ctrl-C on a terminal reaches the whole process group, and perhaps the tool long before its caller. `kill` reaches
# one process only.
@pytest.mark.parametrize("number, at", [(signal.SIGINT, "group"), (signal.SIGINT, "tool"), (signal.SIGTERM, "caller")])
def test_stopped_from_outside_it_ends_its_tool_and_says_how_to_go_on(root, number, at):
    # This runs as a separate process because signals go to processes. It repeats the patches of the fixture.
    program = f"""
import importlib, signal, sys
from pathlib import Path
# A shell in the background starts its commands with SIGINT ignored; a terminal does not.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(process.__file__).rpartition("/scripts/")[0]!r})
from scripts.common import commands, process
from scripts.data import corpus
quickstart = importlib.import_module("scripts.quickstart.__main__")
commands.TOOLS, process.ROOT = {commands.TOOLS!r}, Path({str(root)!r})
quickstart.model.device = lambda cpu: ["--cpu"]
corpus.make = lambda data, say, joined: {{}}
corpus.outputs = lambda data, joined=1: []
sys.exit(quickstart.main({SCRATCH!r}))
"""
    environment = {**os.environ, "FAKE": "hang after epoch 1"}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as running:
        deadline = time.monotonic() + 60
        hanging = root / "hanging"
        while not hanging.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        begin = time.monotonic()
        if at == "group":
            os.killpg(running.pid, number)
        else:
            os.kill(int(hanging.read_text()) if at == "tool" else running.pid, number)
        error = running.communicate(timeout=60)[1]
    assert time.monotonic() - begin < 20
    assert running.returncode == 128 + number, error
    assert "the same command continues" in error and "Traceback" not in error
    marker = root / "runs/quickstart/parity/done-train.json"
    assert not marker.exists()

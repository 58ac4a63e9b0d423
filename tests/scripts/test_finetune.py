"""Tests the recipe from softmax to fast weights with fake tools: what it runs, keeps, resumes, refuses and records."""

import importlib
import json
import sys

import pytest

from scripts.data import corpus
from scripts.quickstart import model
from scripts.reproduce.finetune_softmax_to_fast_weights import arguments, stages
from tests.scripts.recipe_runs import made

recipe = importlib.import_module("scripts.reproduce.finetune_softmax_to_fast_weights.__main__")

# Each tool notes in the file `calls` that it ran. The environment variable FAKE controls the tools.
TOOLS = {
    "fairseq-preprocess": """
        write(flag("--destdir") / "dict.de.txt", "")
    """,
    "fairseq-train": """
        if FAKE == "fail":
            sys.exit("RuntimeError: pretended")
        assert flag("--finetune-from-model").exists() and "--encoder-layers" in sys.argv
        for update, loss in ((1, 5.0), (2, 4.0)):
            values = {"epoch": 1, "update": 0.1, "loss": str(loss), "num_updates": str(update)}
            print(f"x | INFO | train_inner | {json.dumps(values)}")
        write(flag("--save-dir") / "checkpoint_last.pt", "")
    """,
    "fairseq-generate": """
        assert flag("--path").exists()
        number = 100 if "test1" in sys.argv else 1000
        if FAKE == "drop":
            number -= 1
        lines = [f"H-{i}\\t-1\\tx" for i in range(number)]
        speed = "(50.50 sentences/s, 250.0 tokens/s)"
        lines.append(f"NOTE | Translated {number:,} sentences (5,000 tokens) in 20.0s {speed}")
        write(flag("--results-path") / f"generate-{flag('--gen-subset')}.txt", "\\n".join(lines) + "\\n")
    """,
    "fairseq-interactive": """
        length = int(str(flag("--max-len-b")))
        for i, line in enumerate(flag("--input").read_text().splitlines()):
            print(f"S-{i}\\t{line}\\nH-{i}\\t-1\\t{'x ' * length}")
        print("x | INFO | Total time: 9.000 seconds; translation time: 4.000")
    """,
    "fwp": """
        if sys.argv[1] == "convert":
            assert flag("--input").exists()
            write(flag("--output"), "")
            sites = "; ".join(f"{site}: feature-map=elu" for site in ("cross", "decoder", "encoder"))
            print(f"attention: [softmax] -> [{sites}]")
            model = "--arch a --encoder-layers 2 --no-cross-attention --fwp-feature-map elu --fwp-decoder-d-dot 8"
            print(f"to train it on:\\n  --finetune-from-model {flag('--output')} {model}")
        else:
            assert flag("--hypotheses").exists()
            print("\\n" + json.dumps([{"name": "BLEU", "score": 31.4, "signature": "nrefs:1"}], indent=1))
    """,
}
HEAD = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
FAKE = os.environ.get("FAKE", "")
def flag(name): return Path(sys.argv[sys.argv.index(name) + 1])
def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
name = Path(sys.argv[0]).name
with open("calls", "a") as file: print(sys.argv[1] if name == "fwp" else name.removeprefix("fairseq-"), file=file)
"""


@pytest.fixture
def fake_tools(tmp_path):
    return made(tmp_path / "bin", HEAD, TOOLS)


@pytest.fixture
def root(fake_root, monkeypatch):
    def make(data, say, joined=1):
        for path in corpus.outputs(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("A sentence.\n" * 100)
        return {}

    monkeypatch.setattr(corpus, "make", make)
    monkeypatch.setattr(model, "device", lambda cpu: ["--cpu"])
    (fake_root / "softmax.pt").write_text("")
    return fake_root


def run(*more, conversion=("--fwp-feature-map", "elu")):
    return recipe.main(["--checkpoint", "softmax.pt", "--name", "x", *more, "--", *conversion])


def calls(root):
    """Returns the tools that ran since the last call."""
    file = root / "calls"
    lines = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


MEASURE = ["generate", "bleu", "interactive"]
ALL = ["preprocess", *MEASURE, "convert", *MEASURE[:2], "train", *MEASURE]
TRANSFERRED = [*ALL[:-4], "train", *MEASURE[:2], *ALL[-4:]]


def found(root, stage):
    return json.loads((root / "runs/quickstart/x" / stage / "record.json").read_text())


def test_three_stages_are_measured(root, capsys):
    assert run() == 0
    assert calls(root) == ALL
    softmax, converted, finetuned = (found(root, stage) for stage in ("softmax", "converted", "finetuned"))
    expected = {"bleu": 31.4, "sentences_per_second": 50.5, "table": "finetune", "seed": 1}
    for record in (softmax, converted, finetuned):
        assert expected.items() <= record.items() and record["peak_mib"] > 1 and record["environment"]["date"]
    assert (softmax["updates"], converted["updates"], finetuned["updates"]) == (0, 0, 2)
    assert softmax["attention"] == "softmax" and "decoder: feature-map=elu" in finetuned["attention"]
    # 10 sentences of 1000 tokens in 4 seconds
    assert softmax["long_tokens_per_second"] == finetuned["long_tokens_per_second"] == 2500
    assert converted["long_tokens_per_second"] is None
    output = capsys.readouterr().out
    assert "fine-tuned" in output and "elu: all sites " in output and "not run" not in output


def test_feature_maps_are_trained_first(root, capsys):
    assert run("--transfer", "7") == 0
    assert calls(root) == TRANSFERRED
    transferred, finetuned = (found(root, stage) for stage in ("transferred", "finetuned"))
    first, second = (" ".join(record["train_command"]) for record in (transferred, finetuned))
    assert "--criterion attention_transfer" in first and "--label-smoothing" not in first
    assert "--finetune-from-model runs/quickstart/x/converted/checkpoint.pt" in first and "--max-update 7 " in first
    assert "--criterion label_smoothed_cross_entropy --label-smoothing 0.1" in second
    assert "--finetune-from-model runs/quickstart/x/transferred/checkpoints/checkpoint_last.pt" in second
    assert transferred["transfer"] == finetuned["transfer"] == 7 and transferred["long_tokens_per_second"] is None
    output = capsys.readouterr().out
    assert "feature maps trained" in output and "fine-tuned, after 7 of feature maps" in output
    assert "not run" not in output and "[13/13]" in output
    assert run("--transfer", "8") == 1
    assert "transfer: expected 8, actual 7" in capsys.readouterr().err


def test_control_is_softmax_trained_as_long(root, capsys):
    assert run("--transfer", "7", "--updates", "5", "--lr", "0.003", "--control") == 0
    assert calls(root)[-4:] == ["interactive", "train", *MEASURE[:2]]
    record = found(root, "continued")
    command = " ".join(record["train_command"])
    assert "--finetune-from-model softmax.pt --arch a --encoder-layers 2 --no-cross-attention --fwp-" in command
    assert "--fwp-feature-map softmax" in command and command.count("--fwp-") == 1 and "--max-update 12 " in command
    assert record["attention"] == "softmax" and record["updates"] == 2 and record["lr"] == 0.003
    assert "--lr 0.003" in command and "--lr 0.01 " in " ".join(found(root, "transferred")["train_command"])
    assert "softmax, trained on" in capsys.readouterr().out
    # A control may be asked for afterwards.
    assert run("--name", "y") == 0 and run("--name", "y", "--control") == 0
    assert calls(root)[-3:] == ["train", *MEASURE[:2]]


@pytest.mark.slow
def test_second_run_does_nothing_and_says_so(root, capsys):
    run()
    calls(root)
    capsys.readouterr()
    assert run() == 0
    assert calls(root) == [] and capsys.readouterr().out.count("already done") == 12


@pytest.mark.slow
def test_measuring_again_trains_nothing(root):
    run()
    calls(root)
    for stage in ("softmax", "converted", "finetuned"):
        (root / "runs/quickstart/x" / stage / "done-generate.json").unlink()
    assert run() == 0
    assert calls(root) == [*MEASURE, *MEASURE[:2], *MEASURE]
    (root / "runs/quickstart/x/converted/checkpoint.pt").write_text("another")
    assert run() == 0
    assert calls(root) == MEASURE[:2]


@pytest.mark.slow
def test_failed_training_is_done_again_and_nothing_before_it(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "fail")
    assert run() == 1
    assert "RuntimeError: pretended" in capsys.readouterr().err
    calls(root)
    monkeypatch.delenv("FAKE")
    assert run() == 0
    assert calls(root) == ["train", *MEASURE]


def test_missing_translations_are_an_error(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "drop")
    assert run() == 1
    assert "expected 1000 translations, actual 999" in capsys.readouterr().err


def test_another_conversion_or_checkpoint_in_the_same_folder_is_refused(root, capsys):
    run()
    calls(root)
    assert run(conversion=("--fwp-feature-map", "favor")) == 1
    assert "conversion: expected --fwp-feature-map favor, actual --fwp-feature-map elu" in capsys.readouterr().err
    (root / "softmax.pt").write_text("another")
    assert run() == 1
    assert "checkpoint: expected" in capsys.readouterr().err
    assert calls(root) == []


@pytest.mark.slow
def test_records_are_appended_once(root, checkout, capsys):
    checkout(True)
    assert run("--record") == 1 and calls(root) == []
    assert "--record" in capsys.readouterr().err
    checkout(False)
    for _ in range(2):
        assert run("--record") == 0
    lines = (root / "benchmarks/results/finetune.jsonl").read_text().splitlines()
    assert [json.loads(line)["stage"] for line in lines] == ["softmax", "converted", "finetuned"]


def test_without_a_checkpoint_the_quickstart_s_baseline_is_trained(root, monkeypatch):
    asked = []

    def baseline(options):
        asked.append((options.attention, options.smoke, options.seed, options.out))
        corpus.prepare(stages.Steps(2), options.out / "data")
        path = options.out / options.name / "checkpoints/average.pt"
        path.parent.mkdir(parents=True)
        path.write_text("")

    monkeypatch.setattr(model, "train_and_score", baseline)
    assert recipe.main(["--smoke", "--out", "there", "--seed", "3"]) == 0
    ((attention, smoke, seed, out),) = asked
    assert (attention, smoke, seed, str(out)) == ("baseline", True, 3, "there")
    assert calls(root) == ALL
    record = json.loads((root / "there/smoke-finetune-seed3/finetuned/record.json").read_text())
    assert record["table"] == "quickstart-converted" and record["transfer"] == 0


@pytest.mark.parametrize(
    "arguments_, named",
    [
        (["--updates", "9"], "--name"),
        (["--transfer", "9"], "--name"),
        (["--lr", "0.1"], "--name"),
        (["--name", "x", "--transfer", "-1"], "--transfer -1"),
        (["--", "--fwp-feature-map", "elu"], "--name"),
        (["--name", "x", "--updates", "0"], "--updates 0"),
        (["--seed", "-1"], "--seed -1"),
        (["--name", "data"], "--name data"),
        (["--smoke", "--record"], "--smoke"),
    ],
)
def test_calls_that_make_no_sense(arguments_, named, capsys):
    with pytest.raises(SystemExit):
        arguments.parse(arguments_)
    assert named in capsys.readouterr().err


def test_missing_checkpoint_is_named(root, capsys):
    assert recipe.main(["--checkpoint", "no.pt", "--name", "x"]) == 1
    assert "no.pt: no such file" in capsys.readouterr().err and calls(root) == []

"""Tests conversions of softmax models with fake tools: what is run, kept, resumed, refused and recorded."""

import sys
from pathlib import Path

import pytest

from scripts.common.runner import gpus
from scripts.data import corpus
from scripts.experiments.conversion import recipe
from tests.scripts.recipe_runs import made, records_in

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
            model = ["--arch", "a", "--encoder-layers", "2", "--no-cross-attention", "--fwp-feature-map", "elu"]
            model += ["--fwp-decoder-d-dot", "8", "--data-name", "two words"]
            write(flag("--flags-json"), json.dumps({"attention": sites, "flags": model}))
            print("a line\\n  --user-dir of-an-attacker")
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
    def make(data, say):
        for path in corpus.outputs(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("A sentence.\n" * 100)
        return {}

    monkeypatch.setattr(corpus, "make", make)
    monkeypatch.setattr(gpus, "chosen", lambda given: ())
    (fake_root / "softmax.pt").write_text("")
    return fake_root


FILE = Path("runs/conversion/quickstart/finetune.jsonl")
ELU = ("--fwp-feature-map", "elu")


def run(*more, name="x", conversion=ELU, checkpoint="softmax.pt"):
    line = ["--preset", "quickstart", "--checkpoint", checkpoint, "--name", name, *more]
    return recipe.main([*line, "--", *conversion])


def calls(root):
    """Returns the tools that ran since the last call."""
    file = root / "calls"
    lines = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


MEASURE = ["generate", "bleu", "interactive"]
ALL = ["preprocess", *MEASURE, "convert", *MEASURE[:2], "train", *MEASURE]
TRANSFERRED = [*ALL[:-4], "train", *MEASURE[:2], *ALL[-4:]]


def found(root):
    """The records by stage."""
    return {record["stage"]: record for record in records_in(root / FILE)}


def folder(root, name="x"):
    return root / FILE.parent / f"{name}-seed1"


def test_three_stages_are_measured(root, capsys):
    assert run() == 0
    assert calls(root) == ALL
    softmax, converted, finetuned = found(root).values()
    expected = {"bleu": 31.4, "sentences_per_second": 50.5, "table": "finetune", "seed": 1, "row": "x"}
    for record in (softmax, converted, finetuned):
        assert expected.items() <= record.items() and record["peak_mib"] > 1 and record["environment"]["date"]
    assert (softmax["updates"], converted["updates"], finetuned["updates"]) == (0, 0, 2)
    assert softmax["attention"] == "softmax" and "decoder: feature-map=elu" in finetuned["attention"]
    # 10 sentences of 1000 tokens in 4 seconds
    assert softmax["long_tokens_per_second"] == finetuned["long_tokens_per_second"] == 2500
    assert converted["long_tokens_per_second"] is None
    output = capsys.readouterr().out
    assert "finetuned: BLEU 31.40, 50.5 sentences/s" in output and "2500 tokens/s" in output
    # Flags come from the JSON file word by word, never from what was printed.
    command = finetuned["train_command"]
    assert command[command.index("--data-name") + 1] == "two words" and "of-an-attacker" not in command


def test_feature_maps_are_trained_first(root, capsys):
    assert run("--transfer", "7") == 0
    assert calls(root) == TRANSFERRED
    transferred, finetuned = (found(root)[stage] for stage in ("transferred", "finetuned"))
    first, second = (" ".join(record["train_command"]) for record in (transferred, finetuned))
    path = folder(Path("."))
    assert "--criterion attention_transfer" in first and "--label-smoothing" not in first
    assert f"--finetune-from-model {path}/converted/checkpoint.pt" in first and "--max-update 7 " in first
    assert "--criterion label_smoothed_cross_entropy --label-smoothing 0.1" in second
    assert f"--finetune-from-model {path}/transferred/checkpoints/checkpoint_last.pt" in second
    assert transferred["transfer"] == finetuned["transfer"] == 7 and transferred["long_tokens_per_second"] is None
    (root / FILE).unlink()
    assert run("--transfer", "8") == 1
    assert "transfer: expected 8, actual 7" in capsys.readouterr().err


def test_control_is_softmax_trained_as_long(root):
    assert run("--transfer", "7", "--updates", "5", "--lr", "0.003", "--control") == 0
    assert calls(root)[-4:] == ["interactive", "train", *MEASURE[:2]]
    record = found(root)["continued"]
    command = " ".join(record["train_command"])
    assert "--finetune-from-model softmax.pt --arch a --encoder-layers 2 --no-cross-attention --data-name" in command
    assert "--fwp-feature-map softmax" in command and command.count("--fwp-") == 1 and "--max-update 12 " in command
    assert record["attention"] == "softmax" and record["updates"] == 2 and record["lr"] == 0.003
    assert "--lr 0.003" in command and "--lr 0.01 " in " ".join(found(root)["transferred"]["train_command"])


@pytest.mark.slow
def test_finished_steps_are_kept(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "fail")
    assert run() == 1
    assert "RuntimeError: pretended" in capsys.readouterr().err
    calls(root)
    monkeypatch.delenv("FAKE")
    assert run() == 0
    assert calls(root) == ["train", *MEASURE]
    # Measuring again trains nothing.
    (root / FILE).unlink()
    for stage in ("softmax", "converted", "finetuned"):
        (folder(root) / stage / "done-generate.json").unlink()
    assert run() == 0
    assert calls(root) == [*MEASURE, *MEASURE[:2], *MEASURE]
    assert run() == 0 and calls(root) == []


def test_missing_translations_are_an_error(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "drop")
    assert run() == 1
    assert "expected 1000 translations, actual 999" in capsys.readouterr().err


def test_another_conversion_or_checkpoint_in_the_same_folder_is_refused(root, capsys):
    run()
    (root / FILE).unlink()
    calls(root)
    assert run(conversion=("--fwp-feature-map", "favor")) == 1
    assert "conversion: expected ['--fwp-feature-map', 'favor'], actual" in capsys.readouterr().err
    (root / "softmax.pt").write_text("another")
    assert run() == 1
    assert "checkpoint: expected" in capsys.readouterr().err
    assert calls(root) == []


@pytest.mark.slow
def test_records_are_appended_once(root, checkout, capsys):
    checkout(True)
    line = ["--preset", "multi30k", "--checkpoint", "softmax.pt", "--rows", "dpfp", "--record"]
    assert recipe.main(line) == 1 and calls(root) == []
    assert "--record" in capsys.readouterr().err
    checkout(False)
    for _ in range(2):
        assert recipe.main(line) == 0
    assert [record["stage"] for record in records_in(root / "benchmarks/results/finetune.jsonl")] == [
        *("softmax", "converted", "finetuned")
    ]


def test_a_folder_may_have_any_name(root):
    out = 'it\'s a "folder" of\nlätters'
    assert recipe.main(["--preset", "multi30k", "--checkpoint", "softmax.pt", "--rows", "dpfp", "--out", out]) == 0
    (*_, record) = records_in(root / out / "finetune.jsonl")
    command = record["train_command"]
    assert command[command.index("--finetune-from-model") + 1] == f"{out}/dpfp-seed1/converted/checkpoint.pt"


@pytest.mark.parametrize(
    "line, named",
    [
        (["--updates", "9"], "--name"),
        (["--transfer", "9"], "--name"),
        (["--lr", "0.1"], "--name"),
        (["--name", "x"], "--name x: expected flags of fwp convert after --"),
        (["--name", "x", "--transfer", "-1", "--", "--a"], "--transfer -1"),
        (["--", "--fwp-feature-map", "elu"], "--name"),
        (["--name", "x", "--updates", "-1", "--", "--a"], "--updates -1"),
        (["--name", "data", "--", "--a"], "--name data"),
    ],
)
def test_calls_that_make_no_sense(line, named, capsys):
    with pytest.raises(SystemExit):
        recipe.main(["--preset", "quickstart", *line])
    assert named in capsys.readouterr().err


def test_missing_checkpoint_is_named_with_the_command_that_makes_it(root, capsys):
    assert run(checkpoint="no.pt") == 1
    error = capsys.readouterr().err
    assert "no.pt: no such file" in error and "scripts/quickstart.sh --baseline --seed 1 makes it" in error
    assert calls(root) == []

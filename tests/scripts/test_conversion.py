"""Tests conversions of softmax models with fake tools: what is run, kept, resumed, refused and recorded."""

from pathlib import Path

import pytest

from scripts.common.runner import gpus
from scripts.data import corpus
from scripts.experiments.conversion import recipe
from tests.scripts.recipe_runs import calls, records_in


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
MEASURE = ["fairseq-generate", "fwp", "fairseq-interactive"]
ALL = ["fairseq-preprocess", *MEASURE, "fwp", *MEASURE[:2], "fairseq-train", *MEASURE]
TRANSFERRED = [*ALL[:-4], "fairseq-train", *MEASURE[:2], *ALL[-4:]]


def run(row="dpfp", checkpoint="softmax.pt"):
    return recipe.main(["--preset", "quickstart", "--checkpoint", checkpoint, "--rows", row])


def found(root):
    """The records by stage."""
    return {record["stage"]: record for record in records_in(root / FILE)}


def folder(root, name="dpfp"):
    return root / FILE.parent / f"{name}-seed1"


def test_three_stages_are_measured(root, capsys):
    assert run() == 0
    assert calls(root) == ALL
    softmax, converted, finetuned = found(root).values()
    expected = {"bleu": 31.4, "sentences_per_second": 50.5, "table": "finetune", "seed": 1, "row": "dpfp"}
    for record in (softmax, converted, finetuned):
        assert expected.items() <= record.items() and record["peak_mib"] > 1 and record["environment"]["date"]
    assert (softmax["updates"], converted["updates"], finetuned["updates"]) == (0, 0, 30)
    assert softmax["attention"] == "softmax" and "decoder: feature-map=elu" in finetuned["attention"]
    # 10 sentences of 1000 tokens in 4 seconds
    assert softmax["long_tokens_per_second"] == finetuned["long_tokens_per_second"] == 2500
    assert converted["long_tokens_per_second"] is None
    output = capsys.readouterr().out
    assert "finetuned: BLEU 31.40, 50.5 sentences/s" in output and "2500 tokens/s" in output
    # Flags come from the JSON file word by word, never from what was printed.
    command = finetuned["train_command"]
    assert command[command.index("--data-name") + 1] == "two words" and "of-an-attacker" not in command


def test_feature_maps_are_trained_first_and_softmax_as_long(root, capsys):
    assert run("hedgehog") == 0
    assert calls(root) == [*TRANSFERRED, "fairseq-train", *MEASURE[:2]]
    transferred, finetuned, continued = (found(root)[stage] for stage in ("transferred", "finetuned", "continued"))
    first, second, control = (" ".join(record["train_command"]) for record in (transferred, finetuned, continued))
    path = folder(Path("."), "hedgehog")
    assert "--criterion attention_transfer" in first and "--label-smoothing" not in first and "--lr 0.01 " in first
    assert f"--finetune-from-model {path}/converted/checkpoint.pt" in first and "--max-update 150 " in first
    assert "--criterion label_smoothed_cross_entropy --label-smoothing 0.1" in second and "--lr 0.001 " in second
    assert f"--finetune-from-model {path}/transferred/checkpoints/checkpoint_last.pt" in second
    assert transferred["transfer"] == finetuned["transfer"] == 150 and transferred["long_tokens_per_second"] is None
    assert "--finetune-from-model softmax.pt --arch a --encoder-layers 2 --no-cross-attention --data-name" in control
    assert "--fwp-feature-map softmax" in control and control.count("--fwp-") == 1 and "--max-update 550 " in control
    assert continued["attention"] == "softmax"


@pytest.mark.slow
def test_finished_steps_are_kept(root, monkeypatch, capsys):
    monkeypatch.setenv("FAKE", "fail in epoch 1")
    assert run() == 1
    assert "RuntimeError: pretended" in capsys.readouterr().err
    calls(root)
    monkeypatch.delenv("FAKE")
    assert run() == 0
    assert calls(root) == ["fairseq-train", *MEASURE]
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


def test_another_checkpoint_in_the_same_folder_is_refused(root, capsys):
    run()
    (root / FILE).unlink()
    calls(root)
    (root / "softmax.pt").write_text("another")
    assert run() == 1
    assert "checkpoint: expected" in capsys.readouterr().err and calls(root) == []


def test_a_folder_may_have_any_name(root):
    out = 'it\'s a "folder" of\nlätters'
    assert recipe.main(["--preset", "multi30k", "--checkpoint", "softmax.pt", "--rows", "dpfp", "--out", out]) == 0
    (*_, record) = records_in(root / out / "finetune.jsonl")
    command = record["train_command"]
    assert command[command.index("--finetune-from-model") + 1] == f"{out}/dpfp-seed1/converted/checkpoint.pt"


def test_missing_checkpoint_is_named_with_the_command_that_makes_it_and_flags_are_refused(root, capsys):
    assert run(checkpoint="no.pt") == 1
    error = capsys.readouterr().err
    assert "no.pt: no such file" in error and "scripts/quickstart.sh --baseline --seed 1 makes it" in error
    with pytest.raises(SystemExit):
        recipe.main(["--preset", "quickstart", "--", "--fwp-feature-map", "elu"])
    assert "--fwp-feature-map elu: expected no flags after --" in capsys.readouterr().err and calls(root) == []

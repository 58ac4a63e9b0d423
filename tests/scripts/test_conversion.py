"""Tests conversions of softmax models with fake tools: what is run, recorded and refused."""

from pathlib import Path

import pytest

from scripts.experiments.conversion import recipe
from tests.scripts.recipe_runs import calls, records_in

FILE = Path("runs/conversion/quickstart/finetune.jsonl")
MEASURE = ["fairseq-generate", "fwp", "fairseq-interactive"]
ALL = ["fairseq-preprocess", *MEASURE, "fwp", *MEASURE[:2], "fairseq-train", *MEASURE]


def run(row="dpfp", checkpoint="softmax.pt"):
    return recipe.main(["--preset", "quickstart", "--checkpoint", checkpoint, "--rows", row])


def found(root):
    """The records by stage."""
    return {record["stage"]: record for record in records_in(root / FILE)}


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
    (root / "other.pt").write_text("of another model, which this conversion is not of")
    assert run(checkpoint="other.pt") == 1 and "checkpoint: expected" in capsys.readouterr().err


def test_missing_checkpoint_is_named_with_the_command_that_makes_it_and_flags_are_refused(root, capsys):
    assert run(checkpoint="no.pt") == 1
    assert capsys.readouterr().err == "error: no.pt: no such file\n"
    assert recipe.main(["--preset", "quickstart", "--rows", "dpfp"]) == 1
    error, made = capsys.readouterr().err, "runs/quickstart/quickstart/baseline-seed1/checkpoints/average.pt"
    command = "python -m scripts.experiments quickstart --preset quickstart --rows baseline --seeds 1"
    assert error == f"error: {made}: no such file; {command} makes it\n"
    with pytest.raises(SystemExit):
        recipe.main(["--preset", "quickstart", "--", "--fwp-feature-map", "elu"])
    assert "--fwp-feature-map elu: expected no flags after --" in capsys.readouterr().err and calls(root) == []

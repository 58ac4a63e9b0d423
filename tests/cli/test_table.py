import csv
import io
import json

import pytest

from fwp_fairseq.tables.plot import embedded_description

THEIRS = {
    "table": "quickstart", "arch": "fwp_transformer_tiny", "feature_map": "dpfp", "update_rule": "sum", "d_dot": 192,
    "parameters": 2345678, "updates": 4000, "valid_loss": 3.14159, "bleu": 12.25, "seed": 1,
    "environment": {"date": "2026-01-01"},
}  # fmt: skip


def test_records_become_a_table_and_a_plot(fwp, refused, tmp_path):
    """Records have different fields. One with feature_map and updates is a row; any other is left out."""
    lines = [
        {"name": "base", "feature_map": "softmax", "updates": 10, "bleu": 27},
        {
            "name": "a1",
            "recipe": "a",
            "feature_map": "dpfp",
            "update_rule": "sum",
            "d_dot": 96,
            "seed": 1,
            "updates": 10,
        },
        {
            "name": "a2",
            "recipe": "a",
            "feature_map": "dpfp",
            "update_rule": "sum",
            "d_dot": 96,
            "seed": 2,
            "updates": 10,
        },
        {"table": "synthetic", "feature_map": "elu", "steps": 3},
    ]
    lines[1]["bleu"], lines[2]["bleu"] = 25, 26
    own = tmp_path / "own.jsonl"
    own.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "quickstart.jsonl").write_text(json.dumps(THEIRS))
    found = fwp("table", "trainings", "--results", own, tmp_path / "results", "--format", "csv").out
    softmax, dpfp, theirs = csv.DictReader(io.StringIO(found))
    assert (softmax["training"], softmax["BLEU"], softmax["valid loss"], softmax["seeds"]) == ("base", "27.0", "", "")
    assert (dpfp["training"], dpfp["BLEU"], dpfp["seeds"]) == ("a1, a2", "25.5", "1, 2")
    assert (theirs["d_dot"], theirs["BLEU"], theirs["parameters"]) == ("192", "12.25", "2345678")
    pytest.importorskip("matplotlib")
    assert fwp("table", "trainings", "--results", own, "--plot", tmp_path / "own.svg").status == 0
    drawn = json.loads(embedded_description((tmp_path / "own.svg").read_bytes()))
    assert drawn["series"][0]["points"] == {"96": [25.5, pytest.approx(0.5**0.5)]} and drawn["lines"][0]["y"] == 27
    own.write_text('{"feature_map": "softmax", "updates": 10}\n')
    assert "to plot, found none" in refused(1, "table", "trainings", "--results", own, "--plot", tmp_path / "no.svg")


def test_the_log_of_another_training_is_not_this_one_s(fwp, save, tmp_path):
    torch = pytest.importorskip("torch")
    state = torch.load(save("fwp_transformer_tiny"), weights_only=True)
    state["cfg"]["checkpoint"] = {"save_dir": "run/checkpoints"}
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    torch.save(state, run / "checkpoints" / "checkpoint_last.pt")
    for name, save_dir, loss in (("train", "run/checkpoints", 7.771), ("other", "softmax/checkpoints", 0.056)):
        lines = [f"INFO | fairseq_cli.train | {{'checkpoint': {{'_name': None, 'save_dir': '{save_dir}'}}}}"]
        lines.append(f"epoch 001 | valid on 'valid' subset | loss {loss} | ppl 2")
        (run / f"{name}.log").write_text("\n".join(lines) + "\n")
    (row,) = csv.DictReader(io.StringIO(fwp("table", "--results", tmp_path, "--format", "csv").out))
    assert float(row["valid loss"]) == pytest.approx(7.771, abs=0.01)


def test_calls_that_make_no_sense(refused, tmp_path):
    results = ("--results", tmp_path)
    assert "'quickstart'" in refused(2, "table", "quickstart", *results)
    assert "--check needs a file" in refused(2, "table", *results, "--check")
    assert ".png or .svg or .pdf" in refused(2, "table", *results, "--plot", "x.jpg")
    assert "nowhere" in refused(1, "table", "--results", tmp_path / "nowhere")

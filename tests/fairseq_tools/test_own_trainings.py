"""fwp table makes a table and a plot from the files of fairseq-train and fairseq-generate."""

import csv
import io
import json
import re
import shutil

import pytest
import torch

from fwp_fairseq.cli import main
from fwp_fairseq.tables.plot import embedded_description

SHORT = ("--max-update", 4, "--validate-interval-updates", 2)


@pytest.fixture(scope="module")
def own(tools):
    """Trains DPFP, which logs as text, and stock softmax, which also translates. Copies DPFP as of another seed."""
    folder = tools.folder / "own"
    dpfp = ("--fwp-feature-map", "dpfp", "--fwp-d-dot", 64, "--log-format", "simple", "--bf16")
    usual = list(tools.training)
    usual[usual.index("fwp_transformer_tiny")] = "transformer_iwslt_de_en"
    softmax = (*usual, "--encoder-layers", 1, "--decoder-layers", 1, "--decoder-embed-dim", 32)
    (folder / "stock").mkdir(parents=True)
    results = tools.run_together(
        [
            ("train", (*tools.training, *dpfp, *SHORT, "--save-dir", "own/dpfp-seed1/checkpoints")),
            ("train", (*softmax, *SHORT, "--save-dir", "own/stock", "--log-file", "own/stock/train.log")),
        ]
    )
    (folder / "dpfp-seed1.log").write_text(results[0].ok().err + results[0].out)
    results[1].ok()
    state = torch.load(folder / "dpfp-seed1/checkpoints/checkpoint_last.pt", weights_only=True)
    state["cfg"]["common"]["seed"], state["extra_state"]["best"] = 2, state["extra_state"]["best"] + 1
    (folder / "dpfp-seed2").mkdir()
    state["cfg"]["task"]["data"] = "another folder"  # with the same data, as that of each fwp train is
    for seed in (1, 2):
        (folder / f"dpfp-seed{seed}/prepared.json").write_text('{"texts": "those"}')
    torch.save(state, folder / "dpfp-seed2/checkpoint_last.pt")
    decoding = ("own/stock/checkpoint_last.pt", "--remove-bpe", "sentencepiece", "--beam", 1, "--max-len-b", 5)
    tools.generate(*decoding, "--results-path", "own/stock/generate").ok()
    return folder, results


def table(capsys, *arguments):
    capsys.readouterr()
    assert main(["table", *map(str, arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_trainings_on_other_data_have_rows_of_their_own(own, capsys, tmp_path):
    for name in ("dpfp-seed1", "dpfp-seed2"):
        shutil.copytree(own[0] / name, tmp_path / name)
    assert len(rows(table(capsys, "--results", tmp_path, "--format", "csv"))) == 1
    (tmp_path / "dpfp-seed2/prepared.json").write_text('{"texts": "others"}')
    assert len(rows(table(capsys, "--results", tmp_path, "--format", "csv"))) == 2


def test_save_dirs_become_rows(own, capsys):
    folder, results = own
    softmax, dpfp = rows(table(capsys, "--results", folder, "--format", "csv"))
    assert (dpfp["training"], dpfp["seeds"]) == ("dpfp-seed1, dpfp-seed2", "1, 2")
    assert (dpfp["attention"], dpfp["d_dot"], dpfp["updates"]) == ("dpfp", "64", "4")
    # The loss is the best of all validations, averaged over the seeds.
    losses = [
        float(loss) for loss in re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", results[0].err + results[0].out)
    ]
    assert len(losses) >= 2 and float(dpfp["valid loss"]) == pytest.approx(min(losses) + 0.5, abs=1e-3)
    assert float(dpfp["valid loss, standard deviation"]) == pytest.approx(0.5**0.5, abs=1e-3)
    for row, trained in zip((dpfp, softmax), results, strict=True):
        parameters = re.search(r"num. shared model params: ([\d,]+)", trained.err + trained.out)[1]
        assert int(row["parameters"]) == int(parameters.replace(",", ""))
    losses = [json.loads(loss) for loss in re.findall(r'\{.*"valid_loss".*', (folder / "stock/train.log").read_text())]
    assert float(softmax["valid loss"]) == min(float(found["valid_loss"]) for found in losses)
    assert (softmax["training"], softmax["model"]) == ("stock", "transformer_iwslt_de_en")
    assert softmax["attention"] == "softmax" and float(softmax["decoding, sentences/s"]) > 0
    # Fields that are not known are empty.
    assert softmax["d_dot"] == softmax["valid BLEU"] == dpfp["BLEU"] == ""
    assert "fairseq-generate's own, of tokens" in table(capsys, "--results", folder)


def test_the_usual_save_dir_of_a_training(own, monkeypatch, capsys):
    monkeypatch.chdir(own[0] / "dpfp-seed1")
    (row,) = rows(table(capsys, "--results", "checkpoints", "--format", "csv"))
    assert row["training"] == "dpfp-seed1" and float(row["valid loss"]) > 0


def test_the_same_training_once_more_is_a_row_of_its_own(own, tmp_path, capsys):
    folder, _ = own
    shutil.copytree(folder / "dpfp-seed2", tmp_path / "first")
    (tmp_path / "second").symlink_to(folder / "dpfp-seed2")
    (tmp_path / "first/circle").symlink_to(tmp_path)
    found = rows(table(capsys, "--results", tmp_path, "--format", "csv"))
    assert [(row["training"], row["seeds"]) for row in found] == [("first", "2"), ("second", "2")]


def test_translations_are_scored_with_sacrebleu(tools, own, capsys):
    folder, _ = own
    references = tools.folder / "raw/val.de"
    hypotheses = folder / "stock/generate/generate-test.txt"
    assert main(["bleu", "--json", "--references", str(references), "--hypotheses", str(hypotheses)]) == 0
    (expected,) = json.loads(capsys.readouterr().out)
    text = table(capsys, "--results", folder, "--references", references, "--format", "csv")
    assert float(rows(text)[0]["BLEU"]) == pytest.approx(expected["score"], abs=0.01)
    assert "tok:13a" in table(capsys, "--results", folder, "--references", references)


def drawn_over(capsys, axis, folder, file, *arguments):
    table(capsys, "--results", folder, "--plot", file, "--axis", axis, *arguments)
    return json.loads(embedded_description(file.read_bytes()))


def test_curves_and_lengths_come_from_logs_and_translations(tools, own, tmp_path, capsys):
    folder, results = own
    curves = drawn_over(capsys, "updates", folder, tmp_path / "curves.svg")
    points = {series["label"]: series["points"] for series in curves["series"]}
    assert len(points) == 2 and all(list(found) == ["2", "4"] for found in points.values())
    losses = re.findall(r"valid on 'valid' subset \| loss [\d.]+ \| nll_loss ([\d.]+)", results[0].err + results[0].out)
    assert [loss for loss, _ in points["dpfp"].values()] == [*map(float, losses[:2])]
    assert curves["y"] == "validation: -log2 p(token), bits"
    references = ("--references", tools.folder / "raw/val.de")
    lengths = drawn_over(capsys, "length", folder, tmp_path / "length.svg", *references)
    assert len(lengths["series"]) == 1 and len(lengths["names"]) >= 4
    (tmp_path / "one.de").write_text("Ein Mann .\n")
    capsys.readouterr()
    assert main(["table", "--results", str(folder), "--references", str(tmp_path / "one.de")]) == 0
    assert "40 translations of 1 references, another test set; not scored" in capsys.readouterr().err
    (shutil.copytree(folder / "dpfp-seed2", tmp_path / "a") / "generate-test.txt").write_text("H-1\t-1\tnur einer\n")
    assert main(["table", "--results", str(tmp_path / "a"), *map(str, references)]) == 0
    assert "1 of 2 translations are missing" in capsys.readouterr().err


def test_plot_in_every_format(own, tmp_path, capsys):
    folder, _ = own
    files = [tmp_path / f"plot.{kind}" for kind in ("png", "svg", "pdf")]
    table(capsys, "--results", folder, "--axis", "d_dot", "--plot", *files)
    assert files[0].read_bytes().startswith(b"\x89PNG") and files[2].read_bytes().startswith(b"%PDF")
    svg = json.loads(embedded_description(files[1].read_bytes()))
    assert svg["y"] == "validation loss of the criterion, bits per token"
    assert svg["x"] == "d_dot, features of each head"
    assert [line["label"] for line in svg["lines"]] == ["softmax"]
    assert [(series["label"], list(series["points"])) for series in svg["series"]] == [("dpfp", ["64"])]

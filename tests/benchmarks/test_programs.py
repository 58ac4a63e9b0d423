"""A tiny run of each program gives a record that its table shows."""

import gzip
import random
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import (
    attention,
    corpus,
    ctranslate2_engine,
    decoding,
    decoding_length,
    gate,
    language_model_training,
    models,
    program,
    recurrent,
    training,
)
from benchmarks.cases import Case
from benchmarks.models import ModelCase
from fwp_fairseq.ops import backends
from fwp_fairseq.tables.table import grid
from scripts.common import records
from scripts.results.tables import TABLES
from tests.pages import command

pytestmark = pytest.mark.slow

FORWARD, BOTH = (Case(part, "float32", "sum", 16, 9, 64) for part in ("forward", "both"))
STEP, REORDER = (Case(part, "float32", "delta", 40, 20, 64) for part in ("decode", "reorder"))
DELTA = "dpfp,d-dot=256,update-rule=delta"
MINI = ModelCase("mini", "multi30k", 200, 2, 1)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    found = records.environment()
    monkeypatch.setattr(program.records, "environment", lambda: {**found, "commit": "c" * 40, "dirty": False})


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A corpus of 60 pairs in the layout of $FWP_DATA."""
    words = random.Random(1)
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for language in ("en", "de"):
        lines = [
            " ".join(words.choice(["a", "cat", "sees", "two", "dogs"]) for _ in range(words.randint(3, 9)))
            for _ in range(60)
        ]
        with gzip.open(folder / f"train.{language}.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    monkeypatch.setenv("FWP_DATA", str(tmp_path / "data"))
    corpus._pairs.cache_clear()
    yield
    corpus._pairs.cache_clear()


def test_every_recurrent_net_agrees_with_its_loop():
    assert all(recurrent.error(name, "cpu") <= recurrent._TOLERANCE for name in recurrent.NETS)


def recording(line: str, folder: Path) -> list[str]:
    """The arguments of a page's command, with records in this folder, and of the mini model."""
    words = shlex.split(line.replace("tiny-multi30k", MINI.name))[3:]
    words[words.index("--record") + 1] = str(folder)
    return words


def shown(folder, name: str) -> list[dict]:
    table = grid(TABLES[name], name, records.read(folder))
    return [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]


@pytest.mark.needs("native")
def test_attention(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(attention.CASES, "cpu", [FORWARD, BOTH])
    arguments = recording(command("docs/kernels.md", "python -m benchmarks.attention"), tmp_path)
    assert attention.main([*arguments, "--seconds", "0.01", "--against", "softmax,torch"]) == 0
    first, second = records.read(tmp_path)
    assert (first["part"], second["part"]) == ("forward", "both")
    assert first["where"] == f"{first['environment']['cpu']}, {torch.backends.cpu.get_cpu_capability()}"
    assert first["ratios"]["softmax"] == pytest.approx(first["seconds"]["ours"] / first["seconds"]["softmax"])
    assert len(first["load"]) == 3
    (row,) = shown(tmp_path, "attention")
    assert row["ratio"] == f"{first['ratios']['softmax']:.2f}"
    lines = capsys.readouterr().out.splitlines()
    for record, line in zip((first, second), (line for line in lines if "float32-sum-16x9-64" in line), strict=True):
        assert line.endswith(f"fastest: {min(record['seconds'], key=record['seconds'].get)}")


@pytest.mark.needs("native")
def test_decode_step(tmp_path, monkeypatch):
    monkeypatch.setitem(attention.CASES, "cpu", [STEP, REORDER])
    assert attention.main(["--record", str(tmp_path), "--seconds", "0.01"]) == 0
    step, reorder = records.read(tmp_path)
    assert set(step["seconds"]) == {"ours", "softmax", "state"}
    assert set(reorder["ratios"]) == {"softmax", "state", "step"}
    (row,) = shown(tmp_path, "decode-step")
    assert row["reordering over step"] == f"{reorder['ratios']['step']:.1%}" and row["history"] == "20"


def run(module, line, row, monkeypatch, tmp_path) -> tuple[int, list[dict]]:
    """A page's command for whole models, on the mini model; status and records."""
    monkeypatch.setattr(module, "WORK", replace(module.WORK, cases={"cpu": [MINI]}))
    results = tmp_path / "results"
    short = ["--threads", "1", "--rounds", "1", "--no-memory", "--rows", row]
    return module.main([*recording(line, results), *short]), records.read(results)


TRAINING = command("docs/performance.md", "python -m benchmarks.training")


@pytest.mark.parametrize(
    "module, line, row",
    [
        (training, TRAINING, "dpfp,d-dot=256 chunked"),
        (
            decoding,
            command("docs/performance.md", "python -m benchmarks.decoding --record"),
            DELTA,
        ),
    ],
)
def test_whole_models(module, line, row, data, monkeypatch, tmp_path):
    status, found = run(module, line, row, monkeypatch, tmp_path)
    assert status == 0
    stock, ours = found
    assert [record["attention"] for record in found] == ["softmax", row]
    assert stock["ratio"] == 1 and ours["ratio"] == pytest.approx(stock["seconds"] / ours["seconds"])
    assert (ours["d_dot"], ours["clock"]) == (256, "cpu")
    unit = module.WORK.unit
    assert stock[unit] == ours[unit] > 50 and stock[f"{unit}_per_second"] > 0
    rows = shown(tmp_path / "results", module.WORK.name)
    assert [line["attention"] for line in rows] == [
        "softmax",
        {DELTA: "dpfp"}.get(row, "dpfp, PyTorch"),
    ]


@pytest.mark.needs("native")
def test_a_profile_of_training(data, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(training, "WORK", replace(training.WORK, cases={"cpu": [MINI]}))
    assert training.main(["--record", str(tmp_path), "--threads", "1", "--rows", "elu", "--profile"]) == 0
    found = records.read(tmp_path)
    assert [record["attention"] for record in found] == ["softmax", "elu"]
    assert {record["table"] for record in found} == {"training-profile"}
    for record in found:
        assert 0 < record["attention_seconds"] < record["update_seconds"]
        assert record["busy_seconds"] is record["waiting_seconds"] is None  # this is no GPU
    assert f"attention {found[1]['attention_seconds'] * 1e3:.2f} ms" in capsys.readouterr().out


@pytest.mark.parametrize("row", ("hybrid", "passages-packed"))
def test_decoding_over_the_length(row, data, monkeypatch, tmp_path):
    line = command("docs/performance.md", "python -m benchmarks.decoding_length")
    status, found = run(decoding_length, line, row, monkeypatch, tmp_path)
    assert status == 0 and [record["attention"] for record in found] == ["softmax", row]
    assert {record["table"] for record in found} == {"decoding-length"}


@pytest.mark.parametrize("row", ctranslate2_engine.TYPES)
def test_other_decoders_compute_the_same(row, data):
    decoding.check(models.build_task(MINI), MINI, row, "cpu")


def test_a_wrong_model_is_not_timed(data, monkeypatch, tmp_path, capsys):
    right = backends.BACKENDS["chunked"].run

    def wrong(problem):
        out, state = right(problem)
        return out * 1.05, state

    monkeypatch.setattr(backends.BACKENDS["chunked"], "run", wrong)
    status, found = run(training, TRAINING, "dpfp,d-dot=256 chunked", monkeypatch, tmp_path)
    assert status == 1 and [record["attention"] for record in found] == ["softmax"]
    assert "FAILED: dpfp,d-dot=256 chunked, mini-multi30k: error of" in capsys.readouterr().out
    with pytest.raises(gate.Refused, match="error of a hypothesis' score"):
        decoding.check(models.build_task(MINI), MINI, "dpfp,d-dot=256 chunked", "cpu")


@pytest.mark.needs("native")
def test_language_model_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(language_model_training, "CASES", [language_model_training.Case("mini", 8)])
    monkeypatch.setattr(
        language_model_training,
        "ROWS",
        ("elu", f"{DELTA}-carried", DELTA),
    )
    line = command("docs/performance.md", "python -m benchmarks.language_model_training")
    assert language_model_training.main([*recording(line, tmp_path), "--seconds", "0.01"]) == 0
    rows = shown(tmp_path, "language-model-training")
    assert [(row["attention"], row["rule"], row["state"]) for row in rows] == [
        ("softmax", "–", "–"), ("dpfp", "delta", "–"), ("elu", "sum", "–"), ("dpfp", "delta", "carried")
    ]  # fmt: skip
    assert float(rows[-1]["over the same without carried state"]) > 0
    assert "of the same without carried state" in capsys.readouterr().out

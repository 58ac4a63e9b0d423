"""A tiny run of each program gives a record that its table shows."""

import gzip
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import (
    attention,
    carried_precision,
    checkouts,
    corpus,
    ctranslate2_engine,
    decode_step,
    decoding,
    gate,
    language_model_training,
    long_runs,
    models,
    program,
    training,
    whole_models,
)
from benchmarks.cases import CASES, Case
from benchmarks.models import ModelCase
from fwp_fairseq.ops import backends
from fwp_fairseq.tables.table import grid
from scripts.common import records
from scripts.results.tables import TABLES

pytestmark = pytest.mark.slow

FORWARD, BOTH = (
    Case(part, "float32", "sum", 16, 9, 64, {"softmax": 1e-9, "torch": 1e9}) for part in ("forward", "both")
)
STEP, REORDER = (
    Case(part, "float32", "delta", 40, 20, 64, {"softmax": 9.0, "step": 0.05}) for part in ("decode", "reorder")
)
MINI = ModelCase("mini", "multi30k", 200, 2, 1, limits={"dpfp256-torch": 0.5})


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


def shown(folder, name: str) -> list[dict]:
    table = grid(TABLES[name], name, records.read(folder))
    return [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]


@pytest.mark.needs("native")
def test_attention(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(attention.CASES, "cpu", [FORWARD, BOTH])
    arguments = ["--record", str(tmp_path), "--seconds", "0.01", "--against", "softmax,torch"]
    assert attention.main(arguments) == 0
    first, second = records.read(tmp_path)
    assert (first["part"], second["part"], first["where"]) == ("forward", "both", first["environment"]["cpu"])
    assert first["ratios"]["softmax"] == pytest.approx(first["seconds"]["ours"] / first["seconds"]["softmax"])
    assert first["over"]["softmax"] > 1 > first["over"]["torch"] and len(first["load"]) == 3
    (row,) = shown(tmp_path, "attention")
    assert row["ratio"] == f"{first['ratios']['softmax']:.2f}" and "missed by" in row["against target"]
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


@pytest.mark.parametrize("wrong", ["step", "reorder"])
def test_a_wrong_step_is_not_timed(monkeypatch, wrong):
    ours = decode_step.DECODERS["ours"]
    change = {
        "step": lambda case, cache, x: ours.step(case, cache, {**x, "beta": x["beta"] * 0.99}),
        "reorder": lambda cache, order: cache,
    }
    broken = replace(ours, **{wrong: change[wrong]})
    with pytest.raises(gate.Refused, match="error of a step"):
        decode_step.check("ours", broken, STEP, "cpu")


@pytest.mark.needs("native")
def test_options_of_a_program(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(attention.CASES, "cpu", [FORWARD, BOTH])
    quick = ["--seconds", "0.01", "--against", "softmax"]
    assert attention.main([*quick, "--only", "^both", "--record", str(tmp_path)]) == 0
    assert [record["part"] for record in records.read(tmp_path)] == ["both"]
    capsys.readouterr()
    assert attention.main([*quick, "--time-limit", "-1"]) == 0
    assert f"left out {FORWARD.name}, {BOTH.name}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--only nothing: expected a match, found none"):
        attention.main(["--only", "nothing"])
    with pytest.raises(SystemExit):
        attention.main(["--against", "nobody"])
    assert "expected some of softmax, torch" in capsys.readouterr().err


def test_no_record_of_uncommitted_changes(tmp_path, monkeypatch):
    for dirty, what in ((True, "uncommitted"), (None, "none that tracks this package")):
        monkeypatch.setattr(program.records, "environment", lambda d=dirty: {"dirty": d, "gpu": None, "cpu": "a cpu"})
        with pytest.raises(SystemExit, match=f"expected a clean git checkout, found .*{what}"):
            attention.main(["--record", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def run(main, work, monkeypatch, tmp_path, *more) -> tuple[int, list[dict]]:
    """Of a whole-model program on the mini model; status and records."""
    monkeypatch.setattr(f"benchmarks.{work.name}.WORK", replace(work, cases={"cpu": [MINI]}))
    results = tmp_path / "results"
    status = main(["--record", str(results), "--threads", "1", "--rounds", "1", *more])
    return status, records.read(results)


@pytest.mark.parametrize("module, row", [(training, "dpfp256-torch"), (decoding, "delta256")])
def test_whole_models(module, row, data, monkeypatch, tmp_path):
    status, found = run(module.main, module.WORK, monkeypatch, tmp_path, "--no-memory", "--rows", row)
    assert status == 0
    stock, ours = found
    assert [record["attention"] for record in found] == ["softmax", row]
    assert stock["ratio"] == 1 and ours["ratio"] == pytest.approx(stock["seconds"] / ours["seconds"])
    assert (ours["limit"], ours["d_dot"], ours["clock"]) == (MINI.limits.get(row), 256, "cpu")
    unit = module.WORK.unit
    assert stock[unit] == ours[unit] > 50 and stock[f"{unit}_per_second"] > 0
    rows = shown(tmp_path / "results", module.WORK.name)
    assert [line["attention"] for line in rows] == ["softmax", {"delta256": "dpfp"}.get(row, "dpfp, PyTorch")]


@pytest.mark.parametrize("row", ctranslate2_engine.TYPES)
def test_other_decoders(row, data, monkeypatch):
    """It is timed on the same number of tokens as fairseq's model, if it computes the same, and else refused."""
    task = models.build_task(MINI)
    decoding.check(task, MINI, row, "cpu")
    (sample, _) = models.batches(task, MINI, "cpu")
    assert decoding.prepare(task, MINI, row, "cpu")(sample) == decoding.prepare(task, MINI, "softmax", "cpu")(sample)
    right = ctranslate2_engine._translator
    monkeypatch.setattr(
        ctranslate2_engine, "_translator", lambda *of: right(*of[:3], models.build_model(task, "mini", row, seed=2))
    )
    with pytest.raises(gate.Refused, match=f"{row}, mini-multi30k: error of a token's log probability"):
        decoding.check(task, MINI, row, "cpu")


def counting(seen: list, stops: str | None = None) -> whole_models.Work:
    """Models that note their turns, 7 words each; the row ``stops`` does."""

    def prepare(task, case, row, device):
        def run(sample):
            if row == stops:
                raise gate.Refused(f"{row} stopped")
            seen.append(row)
            return 7

        return run

    return whole_models.Work("none", "words", {}, lambda *case: None, prepare, 2)


@pytest.mark.parametrize("late, rounds", [(True, 1), (False, 3)])
def test_time_that_is_up_ends_a_case_after_a_round(data, late, rounds):
    seen = []
    found = whole_models.measure(counting(seen), MINI, ["softmax"], "cpu", 3, lambda share=1.0: late)
    assert len(seen) == rounds * MINI.batches and found.counts["words"] == 7 * MINI.batches


def test_rows_without_half_of_the_time_are_left_out(data):
    """The first one is not, and what was prepared is timed in every round."""
    seen = []
    found = whole_models.measure(counting(seen), MINI, ["softmax", "elu"], "cpu", 2, lambda share=1.0: share <= 0.5)
    assert seen == ["softmax"] * 2 * MINI.batches
    assert (list(found.seconds), found.refused) == (["softmax"], {})


def test_a_model_that_stops_costs_its_own_row_only(data):
    seen = []
    found = whole_models.measure(counting(seen, "elu"), MINI, ["softmax", "elu", "dpfp256"], "cpu", 1)
    assert found.refused == {"elu": "elu stopped"} and list(found.seconds) == ["softmax", "dpfp256"]
    assert seen == ["softmax", "dpfp256"] * MINI.batches


def test_peak_on_a_gpu_is_beside_what_was_there(monkeypatch):
    seen = []
    for name, value in {"memory_allocated": 100, "max_memory_allocated": 350}.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda value=value: value)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda: None)
    samples = [{"target": torch.zeros(n)} for n in (3, 9, 5)]
    work = replace(counting(seen), prepare=lambda *case: seen.append)
    run, peak = whole_models._warm_with_peak(work, None, MINI, "softmax", samples)
    assert peak == 250 and len(seen) == work.repeats and all(sample is samples[1] for sample in seen)
    run("timed")
    assert seen[-1] == "timed"


def test_a_wrong_model_is_not_timed(data, monkeypatch, tmp_path, capsys):
    right = backends.BACKENDS["chunked"].run

    def wrong(problem):
        out, state = right(problem)
        return out * 1.05, state

    monkeypatch.setattr(backends.BACKENDS["chunked"], "run", wrong)
    status, found = run(training.main, training.WORK, monkeypatch, tmp_path, "--no-memory", "--rows", "dpfp256-torch")
    assert status == 1 and [record["attention"] for record in found] == ["softmax"]
    assert "FAILED: dpfp256-torch, mini-multi30k: error of" in capsys.readouterr().out
    with pytest.raises(gate.Refused, match="error of a hypothesis' score"):
        decoding.check(models.build_task(MINI), MINI, "dpfp256-torch", "cpu")


def test_peak_memory_is_that_of_a_process_of_its_own(data, forked_spawn):
    case = replace(MINI, batches=1)
    assert 100 << 20 < whole_models.peak_memory(training.WORK, case, "softmax") < 2 << 30


def test_a_missing_corpus_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FWP_DATA", str(tmp_path))
    corpus._pairs.cache_clear()
    with pytest.raises(SystemExit, match=r"multi30k/train\.en\.gz: no such file; FWP_DATA="):
        corpus.load("multi30k")


@pytest.mark.needs("native")
def test_a_checkout_against_itself(tmp_path, monkeypatch, capsys, forked_python):
    root = Path(checkouts.__file__).resolve().parents[1]
    monkeypatch.setitem(CASES, "cpu", [BOTH, STEP])
    monkeypatch.setattr(checkouts, "TURNS", 1)
    monkeypatch.setattr(sys, "executable", forked_python.program)
    monkeypatch.setattr(sys, "argv", ["checkouts", str(root), "--record", str(tmp_path)])
    assert checkouts.main() == 0
    found = records.read(tmp_path)
    assert [record["case"] for record in found] == [BOTH.name, STEP.name]
    for record in found:
        assert record["seconds"] > 0 and record["other_seconds"] > 0
        assert re.fullmatch("[0-9a-f]{40}|unknown", record["other"])
    assert "geometric mean of 2 ratios" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["checkouts", str(tmp_path)])
    with pytest.raises(SystemExit, match="expected a checkout with a folder fwp_fairseq"):
        checkouts.main()


@pytest.mark.needs("native")
def test_long_runs(tmp_path, data, capsys, forked_spawn):
    only = "calls|document-dpfp256|continued-softmax|updates-delta"
    assert long_runs.main(["--record", str(tmp_path), "--count", "12", "--only", only]) == 0
    rows = shown(tmp_path, "long-runs")
    assert [row["what"] for row in rows] == [
        "12 calls of beam search", "12 updates", "12 tokens of a translated document", "12 tokens of a continued text"
    ]  # fmt: skip
    for record in records.read(tmp_path):
        assert [point["done"] for point in record["points"]] == [2, 4, 6, 8, 10, 12]
        assert all(point["seconds"] > 0 and point["resident_bytes"] > 2**26 for point in record["points"])
    assert "tokens of a text" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        long_runs.main(["--count", "9"])
    assert "--count: expected 10 or more, found 9" in capsys.readouterr().err


@pytest.mark.needs("native")
def test_carried_precision(tmp_path):
    assert carried_precision.main(["--record", str(tmp_path), "--positions", "3000"]) == 0
    assert [row["rule"] for row in shown(tmp_path, "carried-precision")] == ["sum", "delta", "gated"]
    for record in records.read(tmp_path):
        assert [point["positions"] for point in record["points"]] == [1000, 3000]
        assert all(0 < point["out"] < 1e-5 and 0 < point["W"] < 1e-5 for point in record["points"])


@pytest.mark.needs("native")
def test_language_model_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(language_model_training, "CASES", [language_model_training.Case("mini", 8)])
    monkeypatch.setattr(language_model_training, "ROWS", ("elu", "delta256-carried", "delta256"))
    assert language_model_training.main(["--record", str(tmp_path), "--seconds", "0.01"]) == 0
    rows = shown(tmp_path, "language-model-training")
    assert [(row["attention"], row["rule"], row["state"]) for row in rows] == [
        ("softmax", "–", "–"), ("dpfp", "delta", "–"), ("elu", "sum", "–"), ("dpfp", "delta", "carried")
    ]  # fmt: skip
    assert float(rows[-1]["over the same without carried state"]) > 0 and rows[-1]["against target"] != "–"
    assert "of the same without carried state" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["loss", "gradient"])
def test_a_wrong_language_model_is_not_timed(monkeypatch, wrong):
    case = language_model_training.Case("mini", 8)
    built = language_model_training.language_model.build

    def build(size, row, *more, **words):
        task, model = built(size, row, *more, **words)
        if "reference" not in more:
            model.decoder.layers[0].fc2.register_full_backward_hook(
                lambda module, before, after: tuple(x if wrong == "loss" else x * 1.01 for x in before)
            )
            if wrong == "loss":
                model.decoder.register_forward_hook(lambda module, given, out: (out[0] * 1.01, out[1]))
        return task, model

    monkeypatch.setattr(language_model_training.language_model, "build", build)
    with pytest.raises(gate.Refused, match=f"error of the {wrong}"):
        language_model_training._check(case, "elu")

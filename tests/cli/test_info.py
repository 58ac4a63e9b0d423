import json

import torch

from fwp_fairseq import info


def test_report_names_versions_operators_and_reasons(fwp):
    found = fwp("info")
    assert found.status == 0
    for part in (
        torch.__version__,
        "fairseq",
        "sacrebleu",
        "sum_rule on cpu",
        "delta_rule on cpu",
        "gated_rule on cuda",
    ):
        assert part in found.out


def test_json_says_the_same(fwp):
    found = json.loads(fwp("info", "--json").out)
    assert found["versions"]["torch"].startswith(torch.__version__)
    assert found["backends"]["sum_rule"]["cpu"]["chosen"] in ("native", "chunked")
    assert set(found["libraries"]) == {"cpu", "cuda"}


def test_chosen_is_the_first_without_reasons(monkeypatch):
    monkeypatch.setattr(info, "backend_report", lambda operator, device: [("fast", ["no compiler"]), ("slow", [])])
    found = info.collect()
    assert found["backends"]["delta_rule"]["cpu"] == {
        "chosen": "slow",
        "reasons": {"fast": ["no compiler"], "slow": []},
    }
    assert "not fast: no compiler" in info.text(found)


def test_nothing_serves(monkeypatch):
    monkeypatch.setattr(info, "backend_report", lambda operator, device: [("fast", ["broken"])])
    assert "no backend" in info.text(info.collect())


def test_build_record_is_shown(monkeypatch):
    record = {"target": "auto", "built": ["cpu"], "torch": "2.13.0", "compiler": "c++ 12", "nvcc": None}
    record["reasons"] = {"cpu": None, "cuda": "no nvcc"}
    monkeypatch.setattr(info._extension, "build_record", lambda: record)
    text = info.text(info.collect())
    assert "cuda not built" in text and "no nvcc" in text and "c++ 12" in text


def test_kept_libraries_are_told_from_built_ones(monkeypatch):
    record = {"target": "auto", "built": [], "torch": None, "compiler": None, "nvcc": None}
    record |= {"reasons": {"cpu": "no torch while building"}, "kept": {"cpu": "2.13.0"}}
    monkeypatch.setattr(info._extension, "build_record", lambda: record)
    lines = [" ".join(line.split()) for line in info.text(info.collect()).splitlines()]
    assert "built nothing" in lines and "cpu kept the library of an earlier build, for torch 2.13.0" in lines
    assert "cpu not built no torch while building" in lines


def test_missing_distribution_is_named(monkeypatch):
    monkeypatch.setitem(info._DISTRIBUTIONS, "sacrebleu", ("no-such-distribution",))
    assert info.collect()["versions"]["sacrebleu"] == "not installed"

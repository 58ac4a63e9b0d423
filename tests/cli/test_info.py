"""fwp info: versions, what is built, and which backend serves what, with reasons."""

import torch

from fwp_fairseq.cli import info


def test_report_names_versions_operators_and_reasons(fwp, monkeypatch):
    record = {"target": "auto", "built": ["cpu"], "torch": "2.13.0", "compiler": "c++ 12", "nvcc": None}
    record |= {"reasons": {"cpu": None, "cuda": "no nvcc"}, "kept": {"cuda": "2.12.0"}}
    monkeypatch.setattr(info._extension, "build_record", lambda: record)
    monkeypatch.setitem(info._DISTRIBUTIONS, "sacrebleu", ("no-such-distribution",))
    found = " ".join(fwp("info").out.split())
    for part in (
        torch.__version__,
        *("sacrebleu not installed", "sum_rule on cpu", "gated_rule on cuda", "c++ 12", "cuda not built no nvcc"),
        "cuda kept the library of an earlier build, for torch 2.12.0",
    ):
        assert part in found
    monkeypatch.setattr(info._extension, "build_record", dict)  # what is left of an edited one
    assert "FWP_BUILD unknown" in " ".join(fwp("info").out.split())

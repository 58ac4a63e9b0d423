"""Tests the tables of whole models: which runs are rows, and that a profile does not hide any of them."""

from scripts.results.benchmarks import TABLES

_KINDS = ("attention", "moving caches", "linear layers", "optimizer", "output and search", "rest")


def _record(profile):
    return {
        "where": "a machine", "attention": "dpfp256", "size": "tiny", "data": "multi30k", "device": "cpu", "threads": 1,
        "feature_map": "dpfp", "backend": "auto", "update_rule": "sum", "d_dot": 256, "profile": profile,
    }  # fmt: skip


def test_a_profile_keeps_the_attention_and_its_share():
    record = _record({kind: (i + 1) / 100 for i, kind in enumerate(_KINDS)})
    table = TABLES["training-profile"]
    assert table.key(record) is not None
    cells = [str(cell(record)) for cell in table.columns.values()]
    assert cells == ["a machine", "tiny", "multi30k", "dpfp", "sum", "256", "1", "1%", "2%", "3%", "4%", "5%", "6%"]


def test_a_run_without_profile_is_no_row_of_it():
    record = _record(None)
    assert TABLES["decoding-profile"].key(record) is None
    assert TABLES["decoding"].key(record) is not None

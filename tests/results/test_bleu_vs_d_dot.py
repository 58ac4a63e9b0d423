"""Tests the table of BLEU over d_dot: its rows, the paper's column and the plot."""

import pytest

from fwp_fairseq.tables.plot import description, draw, embedded_description
from fwp_fairseq.tables.table import run_rows
from scripts.results.tables import TABLES
from tests.results.test_synthetic import rows

NAME = "bleu_vs_d_dot-multi30k"


def record(feature_map="dpfp", d_dot=256, update_rule="sum", **changes):
    softmax = feature_map == "softmax"
    return {
        "table": "bleu_vs_d_dot",
        "preset": "multi30k",
        "row": "a row",
        "feature_map": feature_map,
        "update_rule": None if softmax else update_rule,
        "normalizer": None if softmax else "attention",
        "d_dot": None if softmax else d_dot,
        "seed": 1,
        "updates": 1300,
        "parameters": 1_000_000,
        "valid_loss": 4.0,
        "valid_bleu": None,
        "bleu": 34.0,
        "signature": "BLEU|nrefs:1",
        "bleu_compound_split": None,
        "compound_split_signature": None,
        "train_seconds": 60.0,
        "decode_seconds": 30.0,
        "decode_peak_mib": None,
        "train_command": ["fairseq-train", "data", "--lr", "0.004", "--fwp-feature-map", feature_map],
        "command": "run.py",
        "environment": {"date": "2026-01-01", "cpu": "Some CPU", "cores": 2, "gpu": None},
    } | changes


SOFTMAX = [record("softmax", bleu=bleu, seed=seed) for seed, bleu in enumerate((35.0, 36.0))]


def test_other_recipes_are_other_rows():
    """They are not averaged as if they were seeds of one recipe."""
    other = record(seed=2, bleu=1.0, train_command=["fairseq-train", "--lr", "0.1"])
    found = [row for row in rows(NAME, record(), other) if row["BLEU"] != "not run"]
    assert [(row["BLEU"], row["seeds"]) for row in found] == [("34.00", "1"), ("1.00", "2")]


def drawn(*records, name=NAME):
    return TABLES[name].plot(run_rows(TABLES[name], name, list(records)))


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plots_are_the_same_bytes_and_say_what_they_show(kind):
    plot, other = drawn(*SOFTMAX, record(signature="<&>")), drawn(*SOFTMAX, record(bleu=34.001))
    content = draw(plot, kind)
    assert content == draw(plot, kind)
    if kind == "svg":
        assert embedded_description(content) == description(plot) != description(other)
        assert embedded_description(draw(drawn(), kind)) == description(drawn())
    assert not any(word in content for word in (b"Date", b"date>", b"Software", b"matplotlib.org"))

"""Tables 2 to 5 of the paper: their rows, the paper's column, seeds."""

import statistics

import pytest

from fwp_fairseq.tables.table import grid
from scripts.experiments.language_models.table import published
from scripts.results.tables import TABLES

NAME = "language_models-{}-table_{}"


def record(row="linear-delta-carried-medium", preset="tinyshakespeare", bits=2.0, **changes):
    return {
        "table": "language_models",
        "preset": preset,
        "row": row,
        "seed": 1,
        "updates": 2000,
        "parameters": 400_000,
        "state_numbers": 8192,
        "valid": {"bits_per_token": bits, "word_perplexity": 100 * bits},
        "test": {"bits_per_token": bits + 1, "word_perplexity": 200 * bits},
        "train_seconds": 60.0,
        "eval_seconds": 30.0,
        "recipe": {"--lr": "0.003", "--seed": "1"},
        "environment": {"cpu": "Some CPU", "cores": 2, "gpu": None},
    } | changes


def rows(number, *records, preset="tinyshakespeare"):
    name = NAME.format(preset, number)
    found = grid(TABLES[name], name, list(records))
    return [dict(zip(found.headings, map(str, cells), strict=True)) for cells in found.rows], found.note


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_without_records_every_row_of_the_paper_is_there_and_not_run(number):
    found, _ = rows(number)
    theirs = published(f"table_{number}")
    assert [(row["paper: valid"], row["paper: test"]) for row in found] == [
        (str(row["valid"]), str(row["test"])) for row in theirs
    ]
    assert {row[key] for row in found for key in ("valid", "test", "seeds", "machine")} == {"not run"}


def test_our_rows_stand_beside_the_papers():
    seeds = [record(bits=seed + 1, seed=seed, recipe={"--lr": "0.003", "--seed": str(seed)}) for seed in (1, 2)]
    found, note = rows(4, *seeds, record("linear-delta-nopos-medium"), record(preset="wikitext103"))
    assert len(found) == 6
    (ours,) = (row for row in found if row["valid"] != "not run")
    deviation = statistics.stdev([2, 3])
    expected = {"model": "linear", "update rule": "delta", "state": "8,192", "paper: state, millions": "0.13"}
    expected |= {"valid": f"2.500 ± {deviation:.3f}", "paper: valid": "27.8", "paper: test": "29.4", "seeds": "1, 2"}
    assert expected.items() <= ours.items()
    assert found[2]["model"] == "Transformer-XL, memory of 15" and found[0]["paper: valid"] == ">260"
    assert "bits per character" in note and "standard deviation" in note


def test_a_row_of_several_tables_is_in_all_of_them():
    delta = record("linear-delta-medium")
    assert [sum(row["valid"] == "2.000" for row in rows(number, delta)[0]) for number in (2, 3, 4, 5)] == [1, 1, 0, 0]
    (ours,) = (row for row in rows(3, delta)[0] if row["valid"] == "2.000")
    assert (ours["absolute positions"], ours["attention normalisation"], ours["paper: valid"]) == ("yes", "no", "29.7")


def test_words_are_measured_by_perplexity_and_other_trainings_are_other_rows():
    other = record(preset="wikitext103", recipe={"--lr": "1", "--seed": "1"}, bits=3.0)
    found, note = rows(4, record(preset="wikitext103"), other, preset="wikitext103")
    assert sorted(row["valid"] for row in found if row["valid"] != "not run") == ["200.00", "300.00"]
    assert "Ours: perplexity by word" in note

"""Tests the rows and cells that a table makes from records, and its three formats."""

import csv
import io
import statistics

import pytest

from fwp_fairseq.tables.render import comma_separated, latex, markdown
from fwp_fairseq.tables.table import Table, grid, number, over_seeds
from scripts.results import options
from scripts.results.tables import TABLES

TABLE = Table(
    columns={
        "map": lambda r: r["map"],
        "d_dot": lambda r: r["d_dot"],
        "seeds": lambda r: len(r["seeds"]),
        "size": number("size", ","),
        "BLEU": number("bleu", ".2f"),
    },
    key=lambda r: (r["map"], r["d_dot"]),
    combine=over_seeds("bleu"),
    expected=[{"map": "softmax", "d_dot": 0}, {"map": "dpfp", "d_dot": 512}, {"map": "dpfp", "d_dot": 96}],
    note=lambda rows: " ".join(str(row["bleu"]) for row in rows),
)


def record(**changes):
    return {"table": "t", "map": "dpfp", "d_dot": 96, "seed": 1, "size": 1000, "bleu": 30.0} | changes


def cells(*records):
    return [[str(cell) for cell in row] for row in grid(TABLE, "t", list(records)).rows]


def test_seeds_become_mean_and_sample_standard_deviation():
    values = [30.0, 31.0, 33.5]
    found = cells(*(record(seed=seed, bleu=bleu) for seed, bleu in enumerate(values)))
    assert found[-1] == ["dpfp", "96", "3", "1,000", f"{31.5:.2f} ± {statistics.stdev(values):.2f}"]


def test_newest_record_of_a_seed_wins():
    found = cells(record(bleu=1.0), record(seed=2, bleu=40.0), record(bleu=20.0))
    assert found[-1][2:] == ["2", "1,000", f"30.00 ± {200**0.5:.2f}"]


def test_one_seed_has_no_deviation_and_an_unknown_value_is_a_dash():
    assert cells(record())[-1][4] == "30.00"
    assert cells(record(), record(seed=2, bleu=None))[-1][4] == "–"


def test_expected_rows_come_first_and_in_order_the_others_by_size():
    found = cells(record(d_dot=1000), record(d_dot=200), record(d_dot=512), record(map="softmax", d_dot=0))
    assert [(row[0], row[1], row[4]) for row in found] == [
        ("softmax", "0", "30.00"),
        ("dpfp", "512", "30.00"),
        ("dpfp", "96", "not run"),
        ("dpfp", "200", "30.00"),
        ("dpfp", "1000", "30.00"),
    ]


def test_only_what_a_record_would_tell_is_not_run():
    assert cells()[1] == ["dpfp", "512", "not run", "not run", "not run"]


def test_records_are_selected():
    assert [row[4] for row in cells(record(table="u"), record(table="t", bleu=2.0))][-1] == "2.00"
    table = Table(columns={"BLEU": number("bleu", ".1f")}, key=lambda r: (), select={"table": "t", "preset": "big"})
    found = grid(table, "other", [record(preset="small"), record(preset="big", bleu=5.0)])
    assert [str(cell) for row in found.rows for cell in row] == ["5.0"]


@pytest.mark.parametrize("lacking", ["bleu", "seed", "d_dot", "size"])
def test_record_that_lacks_a_field_is_named(lacking):
    broken = record()
    del broken[lacking]
    with pytest.raises(ValueError, match=f"table t: missing or invalid '{lacking}'"):
        grid(TABLE, "t", [record(), broken])


def test_markdown_and_latex_escape_what_would_break_the_table():
    found = grid(TABLE, "t", [record(map="a|b_50%\\", bleu=1.0), record(map="a|b_50%\\", seed=2, bleu=3.0)])
    assert markdown(found).splitlines()[-3] == r"| a\|b_50%\ | 96 | 2 | 1,000 | 2.00 ± 1.41 |"
    lines = latex(found).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrr}"
    assert " ".join(lines[-4].split()) == r"a|b\_50\%\textbackslash{} & 96 & 2 & 1,000 & 2.00 ± 1.41 \\"
    assert lines[-2:] == [r"\end{tabular}", "% 2.0"]


def test_csv_holds_whole_numbers_and_deviations():
    found = list(
        csv.DictReader(io.StringIO(comma_separated(grid(TABLE, "t", [record(), record(seed=2, bleu=31 / 3)]))))
    )
    row = found[-1]
    assert float(row["BLEU"]) == (30 + 31 / 3) / 2
    assert float(row["BLEU, standard deviation"]) == statistics.stdev([30, 31 / 3])
    assert (row["size"], row["seeds"]) == ("1000", "2")
    # A missing value is an empty cell, so that programs can read the column as numbers.
    assert found[0]["BLEU"] == found[0]["size"] == found[0]["BLEU, standard deviation"] == ""


@pytest.mark.parametrize("name", TABLES)
def test_every_table_shows_what_is_expected_of_it_without_a_record(name):
    found = grid(TABLES[name], name, [])
    assert len(found.rows) == len(TABLES[name].expected)
    if name in options.TABLES:  # which need no records
        return
    # a cell that shows "–" beside the authors' number
    assert all(any(str(cell) == "not run" or str(cell).startswith("– /") for cell in row) for row in found.rows)

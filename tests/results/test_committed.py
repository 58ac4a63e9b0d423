"""What is committed is what the committed records say."""

from pathlib import Path

import pytest

from fwp_fairseq.records import read
from fwp_fairseq.tables.plot import described, description
from fwp_fairseq.tables.table import run_rows
from scripts.results.pages import regenerate
from scripts.results.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("scripts/**/*.md")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_regenerated_byte_for_byte(path):
    text = path.read_text(encoding="utf-8")
    assert regenerate(text, read(RESULTS)) == text


def test_plots_show_what_the_records_say():
    """By what is written in them: another matplotlib draws the same in other bytes."""
    pytest.importorskip("PIL")
    for path in (ROOT / "docs" / "figures").glob("*.*"):  # those of a table; others are in folders of their scripts
        table = TABLES[path.stem]
        expected = description(table.plot(run_rows(table, path.stem, read(RESULTS))))
        assert described(path.read_bytes()) == expected, path

"""The committed tables and plots agree with the committed records."""

import importlib

import pytest

from fwp_fairseq.tables.plot import description, embedded_description
from fwp_fairseq.tables.table import run_rows
from scripts.common.records import read
from scripts.experiments.__main__ import NAMES
from scripts.results.pages import regenerate
from scripts.results.tables import TABLES
from tests.pages import PAGES, ROOT

RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_regenerated_byte_for_byte(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert regenerate(text, read(RESULTS)) == text


@pytest.mark.parametrize("page, name", [("docs/flags.md", "flags"), ("docs/layers.md", "arguments")])
def test_the_pages_of_options_have_their_tables(page, name):
    assert (ROOT / page).read_text(encoding="utf-8").count(f"<!-- table:{name} -->") == 1


def test_plots_show_what_the_records_say():
    """Compares the descriptions in the files, because other versions of matplotlib write other bytes."""
    records = read(RESULTS)
    run = {name: run_rows(table, name, records) for name, table in TABLES.items() if table.plot}
    figures = list((ROOT / "docs" / "figures").iterdir())
    assert {path.stem for path in figures} == {name for name, rows in run.items() if rows}
    for path in figures:
        assert embedded_description(path.read_bytes()) == description(TABLES[path.stem].plot(run[path.stem])), path


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_knows_its_committed_records(name):
    recipe = importlib.import_module(f"scripts.experiments.{name}.recipe")
    known = recipe.EXPERIMENT.recorded(ROOT / recipe.EXPERIMENT.records)
    assert known and all(isinstance(key, tuple) for key in known)

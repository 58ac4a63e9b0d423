"""The committed tables and plots agree with the committed records."""

import importlib
import re

import pytest

from fwp_fairseq.tables.table import run_rows
from scripts.common.records import FOLDER, read
from scripts.experiments.__main__ import NAMES
from scripts.results.__main__ import main
from scripts.results.tables import TABLES
from tests.pages import ROOT


def test_pages_and_figures_say_what_the_records_say():
    assert main(["--check"]) == 0


@pytest.mark.parametrize("page, name", [("docs/flags.md", "flags"), ("docs/flags.md", "kinds")])
def test_the_pages_of_options_have_their_tables(page, name):
    assert (ROOT / page).read_text(encoding="utf-8").count(f"<!-- table:{name} -->") == 1


def test_every_plot_with_records_has_a_figure():
    records, figures = read(FOLDER), {path.stem for path in (ROOT / "docs" / "figures").iterdir()}
    assert figures == {name for name, table in TABLES.items() if table.plot and run_rows(table, name, records)}


@pytest.mark.parametrize("page", ["docs/results.md", "docs/documents_results.md"])
def test_short_tables_hold_numbers_of_the_tables_of_all_rows(page):
    """Except in the section of ideas that are not in the code, whose records are kept apart."""
    text = (ROOT / page).read_text(encoding="utf-8").partition("## What was tried")[0]
    numbers = re.compile(r"\d+\.\d+ ± \d+\.\d+|\d+\.\d\d+")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    short = {found for row in rows for cell in row.split("|") for found in numbers.findall(cell)}
    every = (ROOT / "docs/tables.md").read_text(encoding="utf-8")
    assert len(short) > 40
    assert [found for found in sorted(short) if f"| {found} |" not in every] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_knows_its_committed_records(name):
    recipe = importlib.import_module(f"scripts.experiments.{name}.recipe")
    known = recipe.EXPERIMENT.recorded(ROOT / recipe.EXPERIMENT.record_file)
    assert known and all(isinstance(key, tuple) for key in known)

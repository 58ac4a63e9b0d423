"""Tests a figure with the committed records: it is drawn alike each time, and says what it shows."""

import pytest

from fwp_fairseq.tables.plot import description, draw, embedded_description
from fwp_fairseq.tables.table import run_rows
from scripts.common.records import FOLDER, read
from scripts.results.tables import TABLES

NAME = "bleu_vs_d_dot-multi30k"


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plots_are_the_same_bytes_and_say_what_they_show(kind):
    records = read(FOLDER)
    plot, other = (TABLES[NAME].plot(run_rows(TABLES[NAME], NAME, some)) for some in (records, []))
    content = draw(plot, kind)
    assert content == draw(plot, kind)
    if kind == "svg":
        assert embedded_description(content) == description(plot) != description(other)
        assert embedded_description(draw(other, kind)) == description(other)
    assert not any(word in content for word in (b"Date", b"date>", b"Software", b"matplotlib.org"))

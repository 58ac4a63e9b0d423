"""Tests the tables and figures of the synthetic task with made-up records and the authors' published losses."""

import pytest

from fwp_fairseq.tables.table import grid, run_rows
from scripts.experiments.synthetic.figures import LEAST_LOSS
from scripts.experiments.synthetic.outcomes import Outcome, published
from scripts.experiments.synthetic.rows import SIZES
from scripts.results.tables import TABLES


def record(model, S, loss, setting=1, seed=1, solved=None):
    solved = loss is not None and loss <= 0.001 if solved is None else solved
    return {
        "table": "synthetic", "setting": setting, "model": model, "S": S, "seed": seed, "best_loss": loss,
        "stop": "solved" if solved else "no progress", "losses": [0.2, None, 0.0005], "steps": 300,
    }  # fmt: skip


def rows(name, *records):
    table = grid(TABLES[name], name, list(records))
    return [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]


def test_published_losses():
    first, second = published(1), published(2)
    assert first["dpfp3-sum", 380] == Outcome(0.0045, False) and second["dpfp1-delta", 20] == Outcome(0.0008, True)
    assert second["favor64-delta", 140] == Outcome(None, False) and ("dpfp2-delta", 100) not in second
    assert (len(first), len(second)) == (8 * 30, 8 * 10 - 1)


def test_losses_stand_beside_the_authors():
    found = rows(
        "synthetic-update-rules",
        record("dpfp1-delta", 20, 0.00094, setting=2), record("tanh-fwm", 20, 1.25, setting=2),
        record("dpfp1-gated", 20, None, setting=2), record("dpfp1-delta", 20, 0.3, setting=2, seed=2),
        record("dpfp1-sum", 40, 0.1, setting=2), record("elu-sum", 60, 0.1),
    )  # fmt: skip
    assert [int(row["S"]) for row in found] == list(SIZES[2])  # the rows of the whole grid
    assert found[2]["dpfp1-delta"].startswith("– / ")
    assert found[0]["dpfp1-delta"] == "0.0009* / 0.0008*" and found[0]["tanh-fwm"] == "1.25 / 1.50"
    assert found[0]["dpfp1-gated"] == "NaN / –" and found[1]["dpfp1-sum"] == "0.1000 / 0.1039"
    assert found[1]["dpfp1-delta"] == "– / 0.0010*"


def drawn(name, *records):
    return TABLES[name].plot(run_rows(TABLES[name], name, list(records)))


def points(plot, label):
    """Returns the points that are drawn under one label: x to y."""
    (found,) = (series.points for series in plot.series if series.label == label)
    return {x: y for x, (y, _) in found.items()}


def test_figures_show_the_records():
    found = [record("softmax", 20, 0.01), record("softmax", 20, 0.03, seed=2), record("softmax", 40, 0.0)]
    softmax = drawn("synthetic-capacity", *found)
    elu = softmax.beside[0]
    assert (softmax.title, elu.title, len(softmax.beside)) == ("softmax", "ELU+1, sum", 7)
    assert points(softmax, "here") == {20: pytest.approx(0.02), 40: LEAST_LOSS} and points(elu, "here") == {}
    assert [series.points for series in softmax.series if series.label == "each seed"] == [
        {20: (0.01, None)}, {20: (0.03, None)}
    ]  # fmt: skip
    assert list(points(softmax, "authors").items())[:2] == [(20, 0.0006), (40, 0.0003)]
    assert len(points(elu, "authors")) == 30 and elu.verticals == {"S = d_dot": 64} and softmax.verticals == {}
    other = record("elu-sum", 40, 0.3) | {"losses": [None, 0.3]}
    curves = drawn("synthetic-capacity-curves", *found, other)
    assert curves.title.endswith("S = 40")
    assert points(curves, "softmax") == {100: 0.2, 300: 0.0005} and points(curves, "ELU+1, sum") == {200: 0.3}
    never = record("tanh-fwm", 20, None, setting=2) | {"losses": [None]}
    assert drawn("synthetic-update-rules-curves", never).series == []


def test_losses_of_a_table_are_those_of_the_first_seed():
    found = rows("synthetic-capacity", record("softmax", 20, 0.3), record("softmax", 20, 0.1, seed=2))
    assert found[0]["softmax"].startswith("0.3000 / ")
    assert rows("synthetic-capacity", record("softmax", 20, 0.1, seed=2))[0]["softmax"].startswith("– / ")

"""Tests the tables and figures of the synthetic task with made-up records and the authors' published losses."""

import pytest

from fwp_fairseq.tables.table import NOT_RUN, grid, run_rows
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


def test_the_authors_losses_bear_out_every_claim():
    claims = rows("synthetic-claims")
    assert [row["here"] for row in claims] == [NOT_RUN] * 7 == [row["holds here"] for row in claims]
    assert [row["authors"] for row in claims] == [
        "solved up to 40, not at 60",
        "solved up to 100, not at 120",
        "solved up to 240, not at 260",
        "solved up to 340, not at 360",
        "solved at 480",
        "lowest loss 0.0241 (favor512-sum, S = 20)",
        "delta 0.0008*, sum 0.0973",
    ]


def claim(number, *records):
    row = rows("synthetic-claims", *records)[number]
    return row["here"], row["holds here"]


def test_capacity_claims():
    few, many = record("dpfp2-sum", 200, 0.0004), record("dpfp2-sum", 280, 0.04)
    assert claim(2, few, many) == ("solved up to 200, not at 280", "yes")
    assert claim(2, few) == claim(2, many) == claim(2, few, record("dpfp2-sum", 400, 0.1)) == (NOT_RUN, NOT_RUN)
    unlucky = record("dpfp2-sum", 100, 0.2)
    assert claim(2, few, many, unlucky) == ("solved up to 200 (but not at 100), not at 280", "yes")
    unsolved = record("dpfp2-sum", 200, 0.2)
    assert claim(2, unsolved, many, record("dpfp2-sum", 100, 0.0004)) == ("solved up to 100, not at 200", "no")
    solved = record("dpfp2-sum", 280, 0.0004)
    assert claim(2, few, solved) == (NOT_RUN, NOT_RUN), "nothing yet that fails"
    assert claim(2, few, solved, record("dpfp2-sum", 400, 0.0004)) == ("solved up to 400", "no")
    assert claim(2, few, many, record("dpfp2-sum", 400, 0.0004, seed=2))[1] == "yes", "other seeds are other runs"


def test_softmax_and_favor_claims():
    assert claim(4, record("softmax", 300, 0.0)) == (NOT_RUN, NOT_RUN)
    assert claim(4, record("softmax", 300, 0.0), record("softmax", 400, 0.0)) == ("solved at 400", "yes")
    assert claim(4, record("softmax", 400, 0.1)) == ("not solved at 400", "no")
    favor = [record("favor64-sum", 20, 0.11), record("favor512-sum", 20, 0.02), record("favor64-sum", 200, 0.5)]
    assert claim(5, *favor) == ("lowest loss 0.0200 (favor512-sum, S = 20)", "yes")
    assert claim(5, *favor, record("favor128-sum", 40, 0.0005))[1] == "no"


def test_update_rule_claim():
    delta = record("dpfp1-delta", 20, 0.0009, setting=2)
    assert claim(6, delta) == (NOT_RUN, NOT_RUN)
    assert claim(6, delta, record("dpfp1-sum", 20, 0.09, setting=2)) == ("delta 0.0009*, sum 0.0900", "yes")
    assert claim(6, delta, record("dpfp1-sum", 20, 0.008, setting=2))[1] == "no"
    assert claim(6, record("dpfp1-delta", 20, 0.002, setting=2), record("dpfp1-sum", 20, 0.09, setting=2))[1] == "no"
    assert claim(6, record("dpfp1-delta", 40, 0.0009, setting=2)) == (NOT_RUN, NOT_RUN), "another S"


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

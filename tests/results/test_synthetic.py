"""Tests the tables and figures of the synthetic task with made-up records and the authors' published losses."""

from fwp_fairseq.tables.table import NOT_RUN, grid, run_rows
from scripts.experiments.synthetic.outcomes import Outcome, published
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


def drawn(name, *records):
    return TABLES[name].plot(run_rows(TABLES[name], name, list(records)))


def points(plot, label):
    """Returns the points that are drawn under one label: x to y."""
    (found,) = (series.points for series in plot.series if series.label == label)
    return {x: y for x, (y, _) in found.items()}

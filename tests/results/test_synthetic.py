"""Tests the tables and figures of the synthetic task with made-up records and the authors' published losses."""

from fwp_fairseq.tables.table import grid
from scripts.experiments.synthetic.outcomes import Outcome, published
from scripts.experiments.synthetic.rows import SIZES
from scripts.results.tables import TABLES

DPFP_DELTA = "dpfp,d-dot=128,update-rule=delta"


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
    assert first["dpfp,d-dot=384", 380] == Outcome(0.0045, False)
    assert second[DPFP_DELTA, 20] == Outcome(0.0008, True)
    assert second["favor,d-dot=128,update-rule=delta", 140] == Outcome(None, False)
    assert ("dpfp,d-dot=256,update-rule=delta", 100) not in second
    assert (len(first), len(second)) == (8 * 30, 8 * 10 - 1)


def test_losses_stand_beside_the_authors():
    found = rows(
        "synthetic-update-rules",
        record(DPFP_DELTA, 20, 0.00094, setting=2), record("tanh-fwm", 20, 1.25, setting=2),
        record("dpfp,d-dot=128,update-rule=gated", 20, None, setting=2), record(DPFP_DELTA, 20, 0.3, setting=2, seed=2),
        record("dpfp,d-dot=128", 40, 0.1, setting=2), record("elu", 60, 0.1),
    )  # fmt: skip
    assert [int(row["S"]) for row in found] == list(SIZES[2])  # the rows of the whole grid
    assert found[2][DPFP_DELTA].startswith("– / ")
    assert found[0][DPFP_DELTA] == "0.0009* / 0.0008*" and found[0]["tanh-fwm"] == "1.25 / 1.50"
    assert found[0]["dpfp,d-dot=128,update-rule=gated"] == "NaN / –" and found[1]["dpfp,d-dot=128"] == "0.1000 / 0.1039"
    assert found[1][DPFP_DELTA] == "– / 0.0010*"

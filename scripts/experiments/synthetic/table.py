"""The tables of the synthetic task: our results beside those that the authors published."""

from functools import partial

from fwp_fairseq.tables.table import NONE, Table
from scripts.common.cells import fields

from .figures import end_losses, learning_curves
from .outcomes import of_record, published
from .rows import MODELS, SOLVED


def _losses(setting: int) -> Table:
    """Returns the table of a setting, with a row for each number of keys that the authors or we ran."""

    def cell(model: str, row: dict) -> str:
        theirs = published(setting).get((model, row["S"]))
        return f"{row.get('outcomes', {}).get(model, NONE)} / {NONE if theirs is None else theirs}"

    def combine(records: list[dict]) -> dict:
        losses: dict[str, list[float]] = {}
        for record in records:
            if record["best_loss"] is not None:
                losses.setdefault(record["model"], []).append(record["best_loss"])
        outcomes = {record["model"]: of_record(record) for record in records if record["seed"] == 1}
        return {**records[-1], "outcomes": outcomes, "losses": losses}

    return Table(
        columns={"S": lambda row: row["S"]} | {model: partial(cell, model) for model in MODELS[setting]},
        key=lambda record: (record["S"],),
        combine=combine,
        expected=[{"S": S} for S in sorted({S for _, S in published(setting)})],
        select={"table": "synthetic", "setting": setting},
        note=lambda rows: (
            f"Each cell: best evaluation loss, ours / the authors'. * solved (at most {SOLVED}); {NONE} not run."
        ),
        plot=partial(end_losses, setting),
    )


def _curves(setting: int) -> Table:
    return Table(
        columns={
            **fields({name: name for name in ("model", "S", "seed", "steps")}),
            "best loss": of_record,
            "ended": lambda record: record["stop"],
        },
        key=lambda record: (MODELS[setting].index(record["model"]), record["S"], record["seed"]),
        select={"table": "synthetic", "setting": setting},
        plot=partial(learning_curves, setting),
    )


TABLES = {
    "synthetic-capacity": _losses(1),
    "synthetic-capacity-curves": _curves(1),
    "synthetic-update-rules": _losses(2),
    "synthetic-update-rules-curves": _curves(2),
}

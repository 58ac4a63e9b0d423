"""The tables of the language models, beside Tables 2 to 5 of the paper."""

from collections.abc import Callable

from fwp_fairseq.tables.table import NONE, Number, Table, number, over_seeds
from scripts.common.cells import TRAINING_TIME, machine, seeds, spread_note
from scripts.common.published import tables

from .rows import BITS, BY_NAME, MEASURES

published = tables(__file__)

_SPLITS = ("valid", "test")
_MEANS = (*_SPLITS, "train_seconds", "eval_seconds")


def _combine(preset: str) -> Callable[[list[dict]], dict]:
    """The mean over seeds of what the preset's results are given in, in place of the evaluations."""
    field, _ = MEASURES[preset]
    mean = over_seeds(*_MEANS)
    return lambda records: mean([record | {split: record[split][field] for split in _SPLITS} for record in records])


def _key(names: tuple[str, ...]) -> Callable[[dict], tuple | None]:
    """Rows of other trainings are other rows, except for the seed."""

    def key(record: dict) -> tuple | None:
        if record["row"] not in names:
            return None
        kept = {flag: value for flag, value in record["recipe"].items() if flag not in ("--seed", "--save-dir")}
        return record["row"], record["parameters"], *(f"{flag} {kept[flag]}" for flag in sorted(kept))

    return key


def _of_row(cell: Callable) -> Callable[[dict], object]:
    """A cell that the row tells."""
    return lambda record: cell(BY_NAME[record["row"]])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_FACTS = {
    "size": _of_row(lambda row: row.size),
    "update rule": _of_row(lambda row: row.update_rule or NONE),
    "d_dot": _of_row(lambda row: row.d_dot or NONE),
    "absolute positions": _of_row(lambda row: _yes(row.positions)),
    "attention normalisation": _of_row(lambda row: _yes(row.attention_normalizer)),
}
_COLUMNS = {
    "table_2": ("size", "update rule", "d_dot"),
    "table_3": ("absolute positions", "attention normalisation"),
    "table_4": ("update rule",),
    "table_5": ("update rule", "d_dot"),
}


def _paper(table: str, field: str) -> Callable[[dict], object]:
    rows = {row["row"]: row for row in published(table)}

    def cell(record: dict) -> object:
        value = rows[record["row"]][field]
        return value if isinstance(value, str) else Number(value, ".2f" if field == "state_m" else ".1f")

    return cell


def _state(table: str) -> dict:
    if table != "table_4":
        return {}
    return {"state": number("state_numbers", ","), "paper: state, millions": _paper(table, "state_m")}


def _note(preset: str) -> Callable[[list[dict]], str]:
    def note(rows: list[dict]) -> str:
        ours = f"Ours: {MEASURES[preset][1]}."
        theirs = "The paper's figures are perplexities on WikiText-103, one run each."
        return " ".join([ours, *spread_note(rows), theirs])

    return note


def _table(preset: str, table: str) -> Table:
    names = tuple(row["row"] for row in published(table))
    style = ".3f" if MEASURES[preset] == BITS else ".2f"
    return Table(
        columns={
            "model": _of_row(lambda row: row.model),
            **{heading: _FACTS[heading] for heading in _COLUMNS[table]},
            **_state(table),
            **{split: number(split, style) for split in _SPLITS},
            **{f"paper: {split}": _paper(table, split) for split in _SPLITS},
            "seeds": seeds,
            "updates": number("updates", ","),
            "parameters": number("parameters", ","),
            **TRAINING_TIME,
            "machine": machine,
        },
        key=_key(names),
        combine=_combine(preset),
        expected=[{"row": name} for name in names],
        note=_note(preset),
        select={"table": "language_models", "preset": preset},
    )


TABLES = {f"language_models-{preset}-{table}": _table(preset, table) for preset in MEASURES for table in _COLUMNS}

"""The tables of the language models, beside Tables 2 to 5 of the paper."""

from collections.abc import Callable

from fwp_fairseq.tables.table import Number, Table, number, over_seeds
from scripts.common.cells import TRAINING_TIME, machine, seeds, spread_note
from scripts.common.published import tables

from .rows import BITS, BY_NAME, MEASURES

published = tables(__file__)

_SPLITS = ("valid", "test")
_MEANS = (*_SPLITS, "train_seconds", "eval_seconds")


def _combine(preset: str) -> Callable[[list[dict]], dict]:
    """Returns the mean over seeds of what the preset's results are given in, in place of the evaluations."""
    field, _ = MEASURES[preset]
    mean = over_seeds(*_MEANS)
    return lambda records: mean([record | {split: record[split][field] for split in _SPLITS} for record in records])


# The flags of a training that a row's name tells, and those in which its seeds differ.
_NAMED = {f"--fwp-{name}" for name in ("decoder", "feature-map", "d-dot", "update-rule", "normalizer")}
_OF_A_SEED = {"--seed", "--save-dir"}


def _key(names: tuple[str, ...]) -> Callable[[dict], tuple | None]:
    """Tells trainings apart by everything but the seed."""

    def key(record: dict) -> tuple | None:
        if record["row"] not in names:
            return None
        kept = sorted(record["recipe"].keys() - _NAMED - _OF_A_SEED)
        return record["row"], record["parameters"], *(f"{flag} {record['recipe'][flag]}" for flag in kept)

    return key


def _of_row(cell: Callable) -> Callable[[dict], object]:
    """Returns a cell that the row tells."""
    return lambda record: cell(BY_NAME[record["row"]])


# Beside the kind of attention and the results.
_FACTS = {
    "table_2": {"size": _of_row(lambda row: row.size)},
    "table_3": {"absolute positions": _of_row(lambda row: "yes" if row.positions else "no")},
}


def _paper(table: str, field: str) -> Callable[[dict], object]:
    rows = {row["row"]: row for row in published(table)}

    def cell(record: dict) -> object:
        value = rows[record["row"]][field]
        return value if isinstance(value, str) else Number(value, ".2f" if field == "state_m" else ".1f")

    return cell


_FACTS["table_4"] = {"state": number("state_numbers", ","), "paper: state, millions": _paper("table_4", "state_m")}


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
            "attention": _of_row(lambda row: row.kinds.get("decoder", row.name)),
            **_FACTS.get(table, {}),
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


_TABLES = ("table_2", "table_3", "table_4", "table_5")
TABLES = {f"language_models-{preset}-{table}": _table(preset, table) for preset in MEASURES for table in _TABLES}

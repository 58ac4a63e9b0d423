"""Cells and notes that several tables share."""

from collections.abc import Callable

from fwp_fairseq.tables.table import NONE, Table, grid, number

# Feature maps of records that are in the code no more (docs/results.md, What was tried). Tables do not show them.
REMOVED_MAPS = ("slots", "poly", "exp", "softmax_pair")


def machine(record: dict) -> str:
    """The machine of a record, or those of all seeds."""
    environments = record.get("environments") or [record["environment"]]
    found = [where.get("gpu") or f"{where['cores']} × {where['cpu']}" for where in environments]
    return ", ".join(dict.fromkeys(found))


def d_dot(record: dict) -> object:
    if record["feature_map"] == "softmax":
        return NONE
    return "natural" if record["d_dot"] is None else record["d_dot"]


def seeds(record: dict) -> str:
    return ", ".join(map(str, record["seeds"]))


def training_time(*, hours: bool) -> dict[str, Callable[[dict], object]]:
    """Returns the column of the training's time, in hours or minutes, with its heading."""
    heading, scale = ("training, hours", 1 / 3600) if hours else ("training, minutes", 1 / 60)
    return {heading: number("train_seconds", ".1f", scale)}


def training(*, hours: bool) -> dict[str, Callable[[dict], object]]:
    """Returns the columns of a training and of the decoding after it, with their headings."""
    return {
        "valid loss": number("valid_loss", ".3f"),
        "seeds": seeds,
        "updates": number("updates", ","),
        "parameters": number("parameters", ","),
        **training_time(hours=hours),
        "decoding, seconds": number("decode_seconds", ".0f"),
    }


def spread_note(rows: list[dict]) -> list[str]:
    """Returns what is to be said of several seeds, if there are any."""
    several = any(len(row["seeds"]) > 1 for row in rows)
    return ["± is the standard deviation over seeds."] if several else []


def signature_notes(rows: list[dict], title: str = "sacreBLEU signature", field: str = "signature") -> list[str]:
    """Returns a line for each signature that these rows have."""
    return [f"{title}: `{text}`" for text in dict.fromkeys(row[field] for row in rows if row[field])]


def signatures(rows: list[dict]) -> str:
    return "\n".join(signature_notes(rows))


def lines_of(table: Table, name: str, records: list[dict]) -> list[str]:
    """Returns the lines of a table as text, each column as wide as its widest cell, with its note."""
    shown = grid(table, name, records)
    lines = [shown.headings, *([str(cell) for cell in row] for row in shown.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = (map(str.ljust, line, widths) for line in lines)
    return [*("  ".join(line).rstrip() for line in cells), "", shown.note]

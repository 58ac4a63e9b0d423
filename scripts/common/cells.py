"""Cells and notes that several tables share."""

from collections.abc import Callable
from operator import itemgetter

from fwp_fairseq.tables.table import NONE, number


def fields(names: dict[str, str]) -> dict[str, Callable[[dict], object]]:
    """Makes columns of fields that are shown as they are, by their headings."""
    return {heading: itemgetter(name) for heading, name in names.items()}


def machine(record: dict) -> str:
    """Returns the machine of a record, or those of all seeds."""
    environments = record.get("environments") or [record["environment"]]
    machines = [where.get("gpu") or f"{where['cores']} × {where['cpu']}" for where in environments]
    return ", ".join(dict.fromkeys(machines))


def d_dot(record: dict) -> object:
    if record["feature_map"] == "softmax":
        return NONE
    return "natural" if record["d_dot"] is None else record["d_dot"]


def seeds(record: dict) -> str:
    return ", ".join(map(str, record["seeds"]))


TRAINING_TIME = {"training, minutes": number("train_seconds", ".1f", 1 / 60)}
# The columns of a training and of the decoding after it.
TRAINING = {
    "valid loss": number("valid_loss", ".3f"),
    "seeds": seeds,
    "updates": number("updates", ","),
    "parameters": number("parameters", ","),
    **TRAINING_TIME,
    "decoding, seconds": number("decode_seconds", ".0f"),
}


def spread_note(rows: list[dict], timed: bool = False) -> list[str]:
    """Returns what is to be said of several seeds, if there are any, and of their times and memory."""
    several = any(len(row["seeds"]) > 1 for row in rows)
    times = " Times and memory also vary with the machines of the seeds and their loads." if timed else ""
    return [f"± is the standard deviation over seeds.{times}"] if several else []


def signature_notes(rows: list[dict], title: str = "sacreBLEU signature", field: str = "signature") -> list[str]:
    """Returns a line for each signature that these rows have."""
    return [f"{title}: `{text}`" for text in dict.fromkeys(row[field] for row in rows if row[field])]


def signatures(rows: list[dict]) -> str:
    return "\n".join(signature_notes(rows))

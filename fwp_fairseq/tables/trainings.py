"""The table of ``fwp table``: trainings found in save-dirs of fairseq-train."""

from .table import NONE, Table, number, over_seeds
from .training_plots import plot

_MEANS = ("valid_loss", "valid_bleu", "bleu", "train_seconds", "sentences_per_second")
# What a record has, or None in place of what is not known of its training.
FIELDS = (
    *("name", "arch", "attention", "d_dot", "parameters", "updates", "seed", "recipe", "line", "fine_tuned"),
    *("scorer", "curve", "by_length", *_MEANS),
)


def _key(record: dict) -> tuple:
    """Returns what the records of a row have in common: everything but the seed."""
    # False sorts before True, so softmax attention comes first.
    return (
        record["attention"] != "softmax",
        record["attention"],
        record["d_dot"] or 0,
        record["updates"],
        record["recipe"],
    )


def _combined(records: list[dict]) -> dict:
    """Combines the records of all seeds into one row."""
    return over_seeds(*_MEANS)(records) | {
        "name": ", ".join(record["name"] for record in records),
        "seeds": ", ".join(str(record["seed"]) for record in records if record["seed"] is not None),
        "curves": {record["name"]: record["curve"] for record in records if record["curve"]},
    }


def _name(record: dict) -> str:
    """Returns the names of a row; updates of a model before it was fine-tuned are not among its own."""
    return f"{record['name'] or NONE}{' (fine-tuned)' if record['fine_tuned'] else ''}"


def _or_dash(name: str):
    return lambda record: record[name] or NONE


def _note(rows: list[dict]) -> str:
    lines = [f"BLEU: {text}." for text in dict.fromkeys(row["scorer"] for row in rows) if text]
    if any(" / " in row["attention"] for row in rows):
        lines.append("attention: encoder / decoder / cross-attention.")
    if any(row["spread"] for row in rows):
        lines.append("± is the standard deviation over seeds.")
    return "\n\n".join(lines)


TRAININGS = Table(
    columns={
        "training": _name,
        "model": _or_dash("arch"),
        "attention": lambda record: record["attention"],
        "d_dot": _or_dash("d_dot"),
        "parameters": number("parameters", ","),
        "updates": number("updates", ","),
        "valid loss": number("valid_loss", ".3f"),
        "valid BLEU": number("valid_bleu", ".2f"),
        "BLEU": number("bleu", ".2f"),
        "training, minutes": number("train_seconds", ".1f", 1 / 60),
        "decoding, sentences/s": number("sentences_per_second", ".1f"),
        "seeds": _or_dash("seeds"),
    },
    key=_key,
    combine=_combined,
    note=_note,
    select={},
    plot=plot,
)

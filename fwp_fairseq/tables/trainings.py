"""The table of ``fwp table trainings``: trainings found in save-dirs of fairseq-train or in records."""

from .table import NONE, Table, number, over_seeds, update_rule
from .training_plots import plot

FIELDS = ("name", "arch", "feature_map", "update_rule", "d_dot", "parameters", "updates", "seed", "scorer")
_DRAWN = ("curve", "by_length")
_MEANS = ("valid_loss", "valid_bleu", "bleu", "train_seconds", "sentences_per_second")


def _key(record: dict) -> tuple | None:
    """Returns what the records of a row have in common: everything but the seed. None if the record is no training."""
    if "feature_map" not in record or "updates" not in record:
        return None
    recipe = record.get("recipe") or (record.get("variant") or record.get("row") or record.get("name"))
    # False sorts before True, so softmax attention comes first.
    return (
        record["feature_map"] != "softmax",
        _rule(record),
        record["feature_map"],
        record.get("d_dot") or 0,
        record["updates"],
        str(recipe),
    )


def _combined(records: list[dict]) -> dict:
    """Combines the records of all seeds into one row. Fields that a record does not have are None."""
    filled = [dict.fromkeys((*FIELDS, *_MEANS, *_DRAWN)) | record for record in records]
    names = {record["seed"]: record["name"] or record.get("variant") or record.get("row") for record in filled}
    row = over_seeds(*_MEANS)([record | {"seed": record["seed"] or 0} for record in filled])
    seeds = ", ".join(str(seed) for seed in sorted(names, key=lambda seed: seed or 0) if seed is not None)
    return row | {
        "name": ", ".join(dict.fromkeys(name for name in names.values() if name)),
        "seeds": seeds,
        "curves": {record["name"]: record["curve"] for record in filled if record["curve"]},
    }


def _rule(record: dict) -> str:
    return update_rule({"update_rule": None} | record) or NONE


def _or_dash(name: str):
    return lambda record: record[name] or NONE


def _note(rows: list[dict]) -> str:
    lines = [f"BLEU: {text}." for text in dict.fromkeys(row["scorer"] or row.get("signature") for row in rows) if text]
    if any(row["spread"] for row in rows):
        lines.append("± is the standard deviation over seeds.")
    return "\n\n".join(lines)


TRAININGS = Table(
    columns={
        "training": _or_dash("name"),
        "model": _or_dash("arch"),
        "attention": lambda r: r["feature_map"],
        "update rule": _rule,
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

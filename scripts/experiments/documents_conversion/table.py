"""The table of conversions on documents, like that of the other conversions."""

from dataclasses import replace

from scripts.experiments.conversion import table

_LIKE = table.TABLES["finetune-by-site"]


def _note(rows: list[dict]) -> str:
    said = dict.fromkeys(f"1 in {row['one_of']} test passages of up to {row['words']} words." for row in rows)
    return "\n\n".join([_LIKE.note(rows), *said])


def _key(record: dict) -> tuple:
    return *_LIKE.key(record), record["planned"]  # its presets differ in the updates


TABLES = {"documents-conversion": replace(_LIKE, key=_key, note=_note, select={"table": "documents_conversion"})}

"""The tables of conversions on documents: like that of the other conversions."""

from dataclasses import replace

from fwp_fairseq.tables.table import number
from scripts.experiments.conversion import table

_LIKE = table.TABLES["finetune-by-site"]
_CROSS = {
    "cross-attention": lambda r: _LIKE.columns["attention"](r | {"conversion": _cross(r["conversion"])}),
    "updates": number("updates", ","),
    "hybrid before": number("hybrid", ".2f"),
    "converted": number("converted", ".2f"),
    "then trained": number("finetuned", ".2f"),
    "hybrid, trained on": number("continued", ".2f"),
    "seeds": _LIKE.columns["seeds"],
}


def _cross(conversion: str) -> str:
    return next(text for text in conversion.split("; ") if text.startswith("cross: "))


def _note(rows: list[dict]) -> str:
    said = dict.fromkeys(f"one of {row['one_of']} test windows of up to {row['words']} words" for row in rows)
    return "\n\n".join([_LIKE.note(rows), *said])


TABLES = {
    "documents-conversion": replace(_LIKE, note=_note, select={"table": "documents_conversion"}),
    "documents-cross": replace(_LIKE, columns=_CROSS, note=_note, select={"table": "documents_cross"}),
}

"""The table and the curves of the experiment."""

from __future__ import annotations

from collections.abc import Callable

from fwp_fairseq.tables.plot import Plot, Series
from fwp_fairseq.tables.table import NONE, Number, Table, number
from scripts.common.cells import signature_notes

from .evaluation import BUCKETS
from .presets import DOCUMENTS

_SHORT, *_LONG = map(str, DOCUMENTS.corpus.test_words)


def _key(record: dict) -> tuple | None:
    """The records of the measured corpus; of each training the newest."""
    shown = record["preset"] == DOCUMENTS.name and record["corpus"] == "pinned"
    return (record["row"], record["seed"]) if shown else None


def _score(words: str, bucket: str, name: str, style: str) -> Callable[[dict], object]:
    def cell(record: dict) -> object:
        buckets = record["tests"][words]["buckets"] if words in record["tests"] else {}
        return Number(buckets[bucket][name], style) if bucket in buckets else NONE

    return cell


def _share(name: str) -> Callable[[dict], object]:
    return lambda record: Number(100 * record["tests"][_SHORT][name], ".1f") if _SHORT in record["tests"] else NONE


def _note(rows: list[dict]) -> str:
    if not rows:
        return ""
    said = [
        f"BLEU of windows of up to {_SHORT} English words, of all and by pieces of the source (to 64, to 128, to 256, "
        f"more), and of the same documents in windows of up to {' and '.join(_LONG)}. chrF, length ratio and the "
        f"shares of translations that are cut (as long as their limit) or empty are of windows of {_SHORT}.",
    ]
    tests = [row["tests"][_SHORT] for row in rows if _SHORT in row["tests"]]
    said += signature_notes(tests) + signature_notes(tests, field="chrf_signature")
    for row in rows:
        if row["one_of"] > 1:
            said.append(f"{row['row']}: one of {row['one_of']} test windows was translated.")
    if going_on := [row["row"] for row in rows if not row["ended"]]:
        said.append(f"Not trained to the end: {', '.join(going_on)}. Their figures say how fast a model learns.")
    return "\n\n".join(said)


def _curves(rows: list[dict]) -> Plot:
    """Validation loss over updates and over CPU hours."""

    def series(place: int, scale: float) -> list[Series]:
        return [
            Series(
                f"{row['row']}, seed {row['seed']}",
                row["row"],
                {point[place] * scale: (point[1], None) for point in row["curve"]},
                marked=False,
            )
            for row in rows
        ]

    hours = Plot(x="CPU hours of training", y="validation loss", series=series(2, 1 / 3600), log_x=0)
    return Plot(x="updates", y="validation loss", series=series(0, 1), log_x=0, beside=[hours])


TABLES = {
    "documents": Table(
        columns={
            "row": lambda record: record["row"],
            "seed": number("seed", "d"),
            "updates": number("updates", ","),
            "ended": lambda record: "yes" if record["ended"] else "no",
            "CPU hours": number("cpu_seconds", ".2f", 1 / 3600),
            "valid loss": number("valid_loss", ".3f"),
            "windows": _score(_SHORT, "all", "windows", "d"),
            "BLEU": _score(_SHORT, "all", "bleu", ".2f"),
            **{f"{'to ' * name.isdigit()}{name}": _score(_SHORT, name, "bleu", ".2f") for name in BUCKETS},
            **{f"{words} words": _score(words, "all", "bleu", ".2f") for words in _LONG},
            "chrF": _score(_SHORT, "all", "chrf", ".2f"),
            "length ratio": _score(_SHORT, "all", "length_ratio", ".3f"),
            "cut, %": _share("cut"),
            "empty, %": _share("empty"),
        },
        key=_key,
        expected=[{"row": row.name} for row in DOCUMENTS.rows],
        note=_note,
        plot=_curves,
    ),
}

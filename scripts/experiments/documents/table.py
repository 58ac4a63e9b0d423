"""The table and the curves of the experiment."""

from collections.abc import Callable
from operator import itemgetter

from fwp_fairseq.tables.plot import Plot, Series
from fwp_fairseq.tables.table import NONE, Table, number, over_seeds
from scripts.common.cells import seeds, signature_notes, signatures, spread_note
from scripts.common.row import Row

from .evaluation import BUCKETS
from .presets import BASE, LONG, MORE, SHORT, SMOKE, DocumentsPreset
from .rows import ROWS


def _title(bucket: str) -> str:
    return f"to {bucket}" if bucket.isdigit() else bucket


def _scores(preset: DocumentsPreset) -> dict[str, tuple[str, str, str]]:
    """Maps columns to the words of the passages, the bucket and the score that they show."""
    short, *longer = map(str, preset.corpus.test_words)
    return {
        "BLEU": (short, "all", "bleu"),
        **{_title(name): (short, name, "bleu") for name in BUCKETS},
        **{f"{words} words": (words, "all", "bleu") for words in longer},
        "chrF": (short, "all", "chrf"),
        "length ratio": (short, "all", "length_ratio"),
    }


_SHORT, *_LONGER = map(str, LONG.corpus.test_words)
_SHARES = ("cut", "empty")
_WINDOW_FIELDS = [f"{words} words{what}" for words in (_SHORT, *_LONGER) for what in ("", ", more")]


def _combined(preset: DocumentsPreset) -> Callable[[list[dict]], dict]:
    """Returns the mean over seeds, with the fields that are averaged beside each other."""
    scores, short = _scores(preset), str(preset.corpus.test_words[0])

    def flat(record: dict) -> dict:
        tests = record["tests"]
        # A rehearsal's few documents fill no bucket of long sources.
        columns = {
            name: tests[words]["buckets"].get(bucket, {}).get(score) for name, (words, bucket, score) in scores.items()
        }
        return record | columns | {name: tests[short][name] for name in _SHARES}

    mean = over_seeds("valid_loss", "cpu_seconds", *scores, *_SHARES)
    return lambda records: mean([flat(record) for record in records])


def _note(preset: DocumentsPreset) -> Callable[[list[dict]], str]:
    short, *longer = map(str, preset.corpus.test_words)

    def note(rows: list[dict]) -> str:
        if not rows:
            return ""
        tests = [row["tests"][short] for row in rows]
        return "\n\n".join(
            [
                f"BLEU is that of passages of up to {short} English words: all, and by the number of pieces in the "
                f"source (up to 64, 65 to 128, 129 to 256, more). The columns {' and '.join(longer)} words are for the "
                f"same documents in longer passages. The other columns are for passages of up to {short} words; a "
                f"translation is cut if it is as long as its limit.",
                *spread_note(rows),
                *signature_notes(tests),
                *signature_notes(tests, field="chrf_signature"),
            ]
        )

    return note


_LABELS = {
    "softmax-no-dropout": "softmax, fairseq's",
    "softmax-rotary-no-dropout": "softmax, rotary positions",
    "hybrid-no-dropout": "hybrid",
    "hybrid-gated-no-dropout": "hybrid with decay",
}


def _plot(rows: list[dict]) -> Plot:
    """Plots the validation loss over updates, of the newest record of each row, and BLEU by length of the source."""
    curves, scores = [], []
    places = {_title(bucket): x for x, bucket in enumerate(BUCKETS)}
    for row in sorted((row for row in rows if row["row"] in _LABELS), key=lambda row: [*_LABELS].index(row["row"])):
        label = _LABELS[row["row"]]
        curve = {updates: (loss, None) for updates, loss, _ in row["curve"]}
        curves.append(Series(label, label, curve, marked=False))
        bleu = {x: (row[name], row["spread"].get(name)) for name, x in places.items() if row[name] is not None}
        scores.append(Series(label, label, bleu))
    by_length = Plot(x="pieces of the source", y="BLEU", series=scores, log_x=0, names=places)
    loss = "validation loss with label smoothing, bits per piece"
    return Plot(x="updates", y=loss, series=curves, log_x=0, beside=[by_length])


def _window_key(record: dict) -> tuple | None:
    shown = record["table"] in ("documents", "documents_source_window")
    return (record["row"], record.get("window")) if shown else None


def _flat_windows(record: dict) -> dict:
    fields = {}
    for words, test in record["tests"].items():
        fields[f"{words} words"] = test["buckets"]["all"]["bleu"]
        fields[f"{words} words, more"] = test["buckets"].get("more", {}).get("bleu")
    return {"window": None} | record | fields


def _mean_windows(records: list[dict]) -> dict:
    return over_seeds(*_WINDOW_FIELDS)([_flat_windows(record) for record in records])


def _window_note(rows: list[dict]) -> str:
    what = (
        "BLEU of passages of up to the given number of English words: of all passages, and (more) of those "
        "whose source has more than 256 pieces."
    )
    return "\n\n".join([what, *spread_note(rows), *signature_notes([row["tests"][_SHORT] for row in rows])])


def _gain(bucket: str) -> Callable[[dict], str]:
    """Returns a column with the gain in BLEU over the baseline, and p; buckets of few passages have none."""

    def cell(record: dict) -> str:
        scores = record["buckets"].get(bucket)
        return f"{scores['bleu'] - scores['baseline_bleu']:+.2f} ({scores['p']:.3f})" if scores else NONE

    return cell


def _table(
    preset: DocumentsPreset, plot: Callable[[list[dict]], Plot] | None = None, expected: tuple[Row, ...] = ROWS[:2]
) -> Table:
    """Returns the table of trainings on the measured corpus in this size; on any corpus if it is a rehearsal.

    ``expected``: rows that the table has even without a record.
    """

    def key(record: dict) -> tuple | None:
        shown = record["preset"] == preset.name and (record["corpus"] == "pinned" or preset is SMOKE)
        return (record["row"],) if shown else None

    return Table(
        columns={
            "row": lambda record: record["row"],
            "seeds": seeds,
            "updates": number("updates", ","),
            "CPU hours": number("cpu_seconds", ".2f", 1 / 3600),
            "valid loss": number("valid_loss", ".3f"),
            **{name: number(name, ".3f" if name == "length ratio" else ".2f") for name in _scores(preset)},
            **{f"{name}, %": number(name, ".1f", 100) for name in _SHARES},
        },
        key=key,
        combine=_combined(preset),
        expected=[{"row": row.name} for row in expected],
        note=_note(preset),
        select={"table": "documents"},
        plot=plot,
    )


TABLES = {
    "documents": _table(LONG, _plot),
    "documents-short": _table(SHORT),
    "documents-more": _table(MORE, expected=()),
    "documents-base": _table(BASE),
    "documents-smoke": _table(SMOKE, _plot, expected=SMOKE.rows),
    "documents-paired": Table(
        columns={
            "preset": lambda record: record["preset"],
            "row": lambda record: record["row"],
            "against": lambda record: record["baseline"],
            "seed": lambda record: str(record["seed"]),
            "words": lambda record: str(record["words"]),
            **{_title(bucket): _gain(bucket) for bucket in ("all", *BUCKETS)},
        },
        key=itemgetter("preset", "row", "baseline", "words", "seed"),
        combine=lambda records: {**records[-1], "buckets": {record["bucket"]: record for record in records}},
        select={"table": "documents_paired", "corpus": "pinned"},
        note=signatures,
    ),
    "documents-others": Table(
        columns={
            "documents": lambda record: record["documents"].removeprefix("data-"),
            "preset": lambda record: record["preset"],
            "row": lambda record: record["row"],
            "seeds": seeds,
            **{name: number(name, ".2f") for name in _WINDOW_FIELDS},
        },
        key=itemgetter("documents", "preset", "row"),
        combine=_mean_windows,
        select={"table": "documents_others"},
        note=_window_note,
    ),
    # Records of source windows, and those of models without one.
    "documents-source-window": Table(
        columns={
            "row": lambda record: record["row"],
            "positions read": lambda record: record["window"] or "all",
            "seeds": seeds,
            **{name: number(name, ".2f") for name in _WINDOW_FIELDS},
        },
        key=_window_key,
        combine=_mean_windows,
        select={"preset": LONG.name, "corpus": "pinned"},
        note=_window_note,
    ),
}

"""The plots of ``fwp table``: a score of trainings over their attention, d_dot or updates, or the length of sources."""

from collections import Counter
from textwrap import fill

from .plot import AXIS, Line, Plot, Series, are_turned

AXES = {
    "d_dot": "features of each head; softmax and models with several widths are horizontal lines",
    "attention": "one place for each kind of attention",
    "updates": "learning curves: likelihood and BLEU of each validation in the logs",
    "length": "BLEU of sources of similar length, in tokens",
}
# fairseq prints both to the base 2. The former is what the training minimises, with label smoothing if it has it.
_LOSS, _NLL = "validation loss of the criterion, bits per token", "validation: -log2 p(token), bits"
_SCORES = (("bleu", "BLEU"), ("valid_bleu", "validation BLEU"), ("valid_loss", _LOSS))
_TURNED = 40  # characters of a line of a name that is turned


def plot(rows: list[dict], axis: str | None = None) -> Plot:
    """Makes the plot of the rows over ``axis``: by default d_dot if there are several values, else attention.

    Trainings that differ in any option but d_dot have lines of their own.

    Raises ValueError, which names what is missing, if there is nothing to draw.
    """
    if axis is None:
        axis = "d_dot" if len({row["d_dot"] for row in rows} - {None}) > 1 else "attention"
    drawn = {"d_dot": _over_d_dot, "attention": _over_attention, "updates": _over_updates, "length": _over_length}[axis]
    labels = _labels(rows)
    if axis in ("updates", "length"):
        alike = Counter(labels)
        labels = [
            f"{label}, d_dot {row['d_dot']}" if alike[label] > 1 and row["d_dot"] else label
            for label, row in zip(labels, rows, strict=True)
        ]
    return drawn([(labels[number], row) for number, row in enumerate(rows)])


def _labels(rows: list[dict]) -> list[str]:
    """Returns the attention of each row; if several lines have it, with the name of its line's first training."""
    lines: dict[str, dict] = {}
    for row in rows:
        lines.setdefault(row["attention"], {}).setdefault(row["line"], row["name"])
    names = []
    for row in rows:
        text, several = row["attention"], lines[row["attention"]]
        names.append(text if len(several) < 2 else f"{text}, {several[row['line']]}")
    return [f"{name}, fine-tuned" if row["fine_tuned"] else name for name, row in zip(names, rows, strict=True)]


def _scored(labelled: list[tuple[str, dict]]) -> tuple[str, list[tuple[str, dict, tuple]]]:
    """Returns the title of the score that most trainings have, and each row that has it with mean and deviation."""
    value, title = max(_SCORES, key=lambda score: sum(row[score[0]] is not None for _, row in labelled))
    shown = [(label, row, (row[value], row["spread"].get(value))) for label, row in labelled if row[value] is not None]
    if not shown:
        raise ValueError("expected at least one training with BLEU or a validation loss to plot, found none")
    return title, shown


def _over_d_dot(labelled: list[tuple[str, dict]]) -> Plot:
    title, shown = _scored(labelled)
    series: dict[str, Series] = {}
    lines = []
    for label, row, point in shown:
        if row["d_dot"] is None:
            lines.append(Line(label, *point))
        else:
            series.setdefault(label, Series(label, label, {})).points[row["d_dot"]] = point
    return Plot(x="d_dot, features of each head", y=title, series=list(series.values()), lines=lines)


def _over_attention(labelled: list[tuple[str, dict]]) -> Plot:
    title, shown = _scored(labelled)
    texts = [label if row["d_dot"] is None else f"{label}, d_dot {row['d_dot']}" for label, row, _ in shown]
    alike = Counter(texts)
    texts = [
        f"{text}, {row['name']}" if alike[text] > 1 else text for text, (_, row, _) in zip(texts, shown, strict=True)
    ]
    names = [fill(text, AXIS // len(texts), break_long_words=False) for text in texts]
    if are_turned(names):
        names = [fill(text, _TURNED) for text in texts]
    points = {place: point for place, (_, _, point) in enumerate(shown, 1)}
    return Plot(
        x="",
        y=title,
        series=[Series(title, title, points, joined=False)],
        names=dict(zip(names, points, strict=True)),
        log_x=0,
    )


def _over_updates(labelled: list[tuple[str, dict]]) -> Plot:
    panels = []
    for place, title in ((1, _NLL), (2, "validation BLEU")):
        series = []
        for label, row in labelled:
            curves = row["curves"]
            for name, curve in curves.items():
                points = {
                    validation[0]: (validation[place], None) for validation in curve if validation[place] is not None
                }
                text = label if len(curves) < 2 or name in label else f"{label}, {name}"
                if points:
                    series.append(Series(text, text, points, marked=False))
        if series:
            panels.append(Plot(x="updates", y=title, series=series, log_x=0))
    if not panels:
        raise ValueError("--axis updates: expected logs of fairseq-train with validations beside the checkpoints")
    return Plot(**{**vars(panels[0]), "beside": panels[1:]})


def _over_length(labelled: list[tuple[str, dict]]) -> Plot:
    series, names = [], {}
    for label, row in labelled:
        points = {(low + high) / 2: (score, None) for low, high, score in row["by_length"] or ()}
        names |= {f"{low}–{high}": (low + high) / 2 for low, high, _ in row["by_length"] or ()}
        if points:
            series.append(Series(label, label, points))
    if not series:
        raise ValueError("--axis length: expected --references of outputs of fairseq-generate beside the checkpoints")
    return Plot(x="tokens of the source", y="BLEU", series=series, names=names, log_x=10)

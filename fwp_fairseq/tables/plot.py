"""Plots of rows: values with error bars against a number, as PNG, SVG or PDF.

The same records and the same matplotlib give the same bytes. What is drawn is also written into the file, as JSON, so
that a plot can be compared with the records whatever matplotlib made it.
"""

import json
import re
from dataclasses import asdict, dataclass, field

FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Series:
    """``points``: x to (y, standard deviation or None). Series of one ``group`` have one colour and mark."""

    label: str
    group: str
    points: dict[float, tuple[float, float | None]]
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """A value that does not depend on x, with its standard deviation as a band."""

    label: str
    y: float
    spread: float | None = None
    hollow: bool = False


@dataclass(frozen=True)
class Plot:
    """``hollow_y``: a right axis for what is hollow; its scale is that of the left one, ``hollow_shift`` lower.
    ``beside``: a second panel, to the right; its series have the labels of this one's."""

    x: str
    y: str
    series: list[Series] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    hollow_y: str | None = None
    hollow_shift: float = 0.0
    log_y: bool = False
    beside: "Plot | None" = None


def description(plot: Plot) -> str:
    return json.dumps(asdict(plot), sort_keys=True)


def described(content: bytes) -> str | None:
    """What :func:`description` was of the plot that this file shows; None where the file does not tell."""
    if content.startswith(b"\x89PNG"):
        from io import BytesIO

        from PIL import Image

        return Image.open(BytesIO(content)).info.get("Description")
    if content.startswith(b"%PDF"):
        match = re.search(rb"/Subject \(((?:\\.|[^\\)])*)\)", content)
        return None if match is None else re.sub(r"\\(.)", r"\1", match[1].decode("ascii"))
    match = re.search(r"<dc:description>(.*?)</dc:description>", content.decode("utf-8"), re.DOTALL)
    if match is None:
        return None
    from xml.sax.saxutils import unescape

    return unescape(match[1])


def draw(plot: Plot, kind: str) -> bytes:
    """The content of a ``png``, ``svg`` or ``pdf`` file. Raises ImportError where there is no matplotlib."""
    from io import BytesIO

    import matplotlib
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "fwp_fairseq", "svg.fonttype": "none", "font.size": 9, "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings):
        panels = [plot] if plot.beside is None else [plot, plot.beside]
        figure = Figure(figsize=(7, 4.2) if len(panels) == 1 else (9, 3.6), dpi=150, layout="constrained")
        for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            _draw(panel, axes)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
        file = BytesIO()
        # Without dates and names, and what is drawn where each format has room for it.
        text = description(plot)
        metadata = {
            "png": {"Description": text, "Software": None},
            "svg": {"Description": text, "Date": None, "Creator": None},
            "pdf": {"Subject": text, "CreationDate": None, "Creator": None, "Producer": None},
        }
        figure.savefig(file, format=kind, metadata=metadata[kind])
    return file.getvalue()


_MARKS = "osD^vP"


def _draw(plot: Plot, axes) -> None:
    groups = list(dict.fromkeys(series.group for series in plot.series))
    for series in plot.series:
        number = groups.index(series.group)
        shift = plot.hollow_shift if series.hollow else 0.0
        xs = sorted(series.points)
        style = {"color": f"C{number}", "marker": _MARKS[number % len(_MARKS)], "markersize": 6}
        if series.hollow:
            style |= {"linestyle": "none", "markerfacecolor": "none"}
        deviations = [series.points[x][1] for x in xs]
        axes.errorbar(
            xs,
            [series.points[x][0] + shift for x in xs],
            yerr=None if not any(deviations) else [deviation or 0.0 for deviation in deviations],
            capsize=3,
            label=series.label,
            **style,
        )
    for line in plot.lines:
        style = (0, (1, 2)) if line.hollow else "--"
        shift = plot.hollow_shift if line.hollow else 0.0
        axes.axhline(line.y + shift, color="black", linewidth=1, linestyle=style, label=line.label)
        if line.spread is not None:
            axes.axhspan(
                line.y + shift - line.spread, line.y + shift + line.spread, color="black", alpha=0.1, linewidth=0
            )
    ticks = sorted({x for series in plot.series for x in series.points})
    if ticks and ticks[0] > 0:
        axes.set_xscale("log", base=2)
    if plot.log_y:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.grid(axis="y", linewidth=0.4)
    if plot.hollow_y is not None:
        shift = plot.hollow_shift
        other = axes.secondary_yaxis("right", functions=(lambda y: y - shift, lambda y: y + shift))
        other.set_ylabel(plot.hollow_y)

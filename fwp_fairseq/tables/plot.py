"""Draws plots as PNG, SVG or PDF: values over a number, with error bars.

The same records and the same version of matplotlib give the same bytes. An SVG file also contains a description of the
plot as JSON, so that it can be compared with the records whichever version of matplotlib drew it.
"""

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from textwrap import fill

FORMATS = ("png", "svg", "pdf")
AXIS = 72  # characters of upright names below an axis, all together; longer ones are turned
_UPRIGHT = 7  # the largest number of such names; more are turned
_APART = 7  # points of the page between markers of two series at the same x
_LEGEND = 12  # characters of a legend in an inch of the figure
_LINE = 0.2  # inches that a line of the legend takes
_MARGIN = 0.12  # inches at both sides


@dataclass(frozen=True)
class Series:
    """A line through points.

    ``points`` maps x to (y, standard deviation or None). Series of the same ``group`` share a colour and a marker.
    A ``hollow`` series has hollow markers, and one that is not ``joined`` has no lines between its points. A series
    that is not ``marked`` has markers only if it has fewer than three points.
    """

    label: str
    group: str
    points: dict[float, tuple[float, float | None]]
    hollow: bool = False
    joined: bool = True
    marked: bool = True


@dataclass(frozen=True)
class Line:
    """A horizontal line for a value that does not depend on x, with its standard deviation as a band.

    The only line that is not hollow is black. If there are several, each has a colour that no series has.
    """

    label: str
    y: float
    spread: float | None = None
    hollow: bool = False


@dataclass(frozen=True)
class Plot:
    """One panel of a figure, with any further panels.

    - ``log_x``, ``log_y``: bases of logarithmic scales, 0 for linear ones. With base 2, every x of a point is a tick.
    - ``verticals``: labels of vertical lines, with their x.
    - ``names``: names of values of x, which take the place of numbers on a linear scale.
    - ``beside``: further panels, which are drawn in ``rows`` rows together with this one.

    A legend above all panels names the lines.
    """

    x: str
    y: str
    series: list[Series] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    title: str = ""
    log_x: int = 2
    log_y: int = 0
    y_range: tuple[float | None, float | None] = (None, None)
    verticals: dict[str, float] = field(default_factory=dict)
    names: dict[str, float] = field(default_factory=dict)
    beside: list["Plot"] = field(default_factory=list)
    rows: int = 1


def description(plot: Plot) -> str:
    """Returns everything that the plot shows, as JSON."""
    return json.dumps(asdict(plot), sort_keys=True)


def embedded_description(content: bytes) -> str | None:
    """Returns the :func:`description` that an SVG of :func:`draw` contains, or None if it contains none."""
    match = re.search(r"<dc:description>(.*?)</dc:description>", content.decode("utf-8"), re.DOTALL)
    if match is None:
        return None
    from xml.sax.saxutils import unescape

    return unescape(match[1])


def draw(plot: Plot, kind: str) -> bytes:
    """Returns the content of a ``png``, ``svg`` or ``pdf`` file. Raises ImportError if matplotlib is not installed."""
    from io import BytesIO

    import matplotlib
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "fwp_fairseq", "svg.fonttype": "none", "font.size": 9, "font.family": "DejaVu Sans"}
    panels = [plot, *plot.beside]
    columns = -(-len(panels) // plot.rows)
    size = (7, 4.2) if len(panels) == 1 else (11, 3.8)
    if plot.rows > 1:
        size = (2.75 * columns, 2.9 * plot.rows)
        settings |= {"font.size": 7, "lines.markersize": 3, "lines.linewidth": 1}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        figure.get_layout_engine().set(w_pad=_MARGIN)  # a browser may have a wider font
        axes = list(figure.subplots(plot.rows, columns, squeeze=False).flat)
        for unused in axes[len(panels) :]:
            unused.remove()
        groups = list(dict.fromkeys(series.group for panel in panels for series in panel.series))
        for panel, place in zip(panels, axes, strict=False):
            _draw(panel, place, groups)
        entries = {}
        for place in figure.axes:
            for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
                if label != place.get_ylabel():
                    entries[label] = handle
        height = size[1] + _LINE * max(map(_lines_of_names, panels))  # the axes keep their height
        figure.set_figheight(height)
        _add_legend(figure, entries)
        file = BytesIO()
        # No dates and no program names, so that the same plot gives the same bytes.
        metadata = {
            "png": {"Software": None},
            "svg": {"Description": description(plot), "Date": None, "Creator": None},
            "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        }
        figure.savefig(file, format=kind, metadata=metadata[kind])
    return file.getvalue()


def _add_legend(figure, entries: dict) -> None:
    widest = int(_LEGEND * figure.get_figwidth())
    entries = {fill(label, widest): handle for label, handle in entries.items()}
    columns = max(1, min(4, widest // max(map(len, entries), default=1)))
    lines = max(1 + label.count("\n") for label in entries) * -(-len(entries) // columns) if entries else 1
    figure.set_figheight(figure.get_figheight() + _LINE * (lines - 1))
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=int(columns), frameon=False)


def are_turned(names: Collection[str]) -> bool:
    """Returns True if names below an axis are turned, because they are many or one is wider than its place."""
    return len(names) > _UPRIGHT or any(len(line) > AXIS // len(names) for name in names for line in name.splitlines())


def _lines_of_names(plot: Plot) -> float:
    """Counts the lines of text that the names below the axis need in addition to one."""
    if are_turned(plot.names):
        return max(len(line) for name in plot.names for line in name.splitlines()) / 2.5
    return max((name.count("\n") for name in plot.names), default=0)


_MARKS = "osD^vP"


def _colour(groups: list[str], group: str) -> str:
    return f"C{groups.index(group)}"


def _draw(plot: Plot, axes, groups: list[str]) -> None:
    shared = _overlapping(plot.series)
    for series in plot.series:
        place = shared.index(series) - (len(shared) - 1) / 2 if series in shared else 0.0
        _draw_series(series, groups, _APART * place, axes)
    alone = sum(not line.hollow for line in plot.lines) < 2
    for number, line in enumerate(plot.lines, len(groups)):
        colour = "black" if alone else f"C{number}"
        axes.axhline(
            line.y, color=colour, linewidth=1, linestyle=(0, (1, 2)) if line.hollow else "--", label=line.label
        )
        if line.spread is not None:
            axes.axhspan(line.y - line.spread, line.y + line.spread, color=colour, alpha=0.1, linewidth=0)
    for label, x in plot.verticals.items():
        axes.axvline(x, color="black", linewidth=1, linestyle="-.", label=label)
    _set_scales(plot, axes)
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.grid(axis="y", linewidth=0.4)


def _overlapping(series: list[Series]) -> list[Series]:
    """Returns the series with an error bar that touches another one's; their markers are drawn beside each other."""

    def touch(first: Series, second: Series) -> bool:
        both = ((first.points[x], second.points[x]) for x in first.points.keys() & second.points.keys())
        return any(abs(y - z) <= (up or 0) + (down or 0) for (y, up), (z, down) in both if up or down)

    return [line for line in series if any(touch(line, other) for other in series if other is not line)]


def _draw_series(series: Series, groups: list[str], beside: float, axes) -> None:
    """Draws a series, moved to the right by ``beside`` points (1/72 inch)."""
    from matplotlib.transforms import ScaledTranslation

    xs, number = sorted(series.points), groups.index(series.group)
    style = {"color": _colour(groups, series.group)}
    if series.marked or len(xs) < 3:
        style |= {"marker": _MARKS[number % len(_MARKS)]}
    if series.hollow:
        style |= {"markerfacecolor": "none"}
    if not series.joined:
        style |= {"linestyle": "none"}
    if beside:
        style |= {"transform": axes.transData + ScaledTranslation(beside / 72, 0, axes.figure.dpi_scale_trans)}
    deviations = [series.points[x][1] for x in xs]
    axes.errorbar(
        xs,
        [series.points[x][0] for x in xs],
        yerr=None if not any(deviations) else [deviation or 0.0 for deviation in deviations],
        capsize=3,
        label=series.label,
        **style,
    )
    if beside:  # matplotlib ignores the data of artists with another transform when it sets the limits
        corners = [(x, y + sign * (deviation or 0)) for x, (y, deviation) in series.points.items() for sign in (-1, 1)]
        axes.update_datalim(corners)
        axes.margins(x=0.08)
        axes.autoscale_view()


def _set_scales(plot: Plot, axes) -> None:
    ticks = sorted({x for series in plot.series for x in series.points})
    if ticks and ticks[0] > 0 and plot.log_x:
        axes.set_xscale("log", base=plot.log_x)
    if not plot.log_x and not plot.names:
        axes.locator_params(axis="x", nbins=6, integer=True)
    if plot.log_y:
        axes.set_yscale("log", base=plot.log_y)
    if plot.log_y == 2:
        axes.yaxis.set_major_formatter("{x:g}")
    if plot.log_x == 2:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if plot.names:
        axes.set_xticks([*plot.names.values()], [*plot.names], rotation=90 if are_turned(plot.names) else 0)
    axes.minorticks_off()
    axes.set_ylim(*plot.y_range)

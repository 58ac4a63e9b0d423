"""Draws the paper's Figures 2 to 5 from the records: final losses over the number of keys, with those that the authors
published, and learning curves. The same records always give the same files."""

import argparse
import hashlib
import json
import statistics
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fwp_fairseq.feature_maps import Favor
from fwp_fairseq.records import read
from scripts.results.synthetic_published import PUBLISHED

from . import setting1, setting2
from .grid import ROOT
from .model import Variant
from .training import EVALUATE_EVERY, SOLVED

LEAST_LOSS = 1e-4  # lower losses, down to zero, are drawn at this value
OURS, THEIRS, MARK = "#0b6bb5", "#d2691e", "#8a8a8a"
MODELS = {1: setting1.MODELS, 2: setting2.MODELS}
TITLES = {
    1: "Setting 1: S keys without replacement",
    2: "Setting 2: 2S pairs, keys and values with replacement",
}


def _title(model: str) -> str:
    variant = Variant.of(model)
    name = {"elu": "ELU+1", "dpfp": "DPFP-", "favor": "FAVOR+, m = "}.get(variant.feature_map, variant.feature_map)
    name += str(variant.parameter or "")
    return name if variant.rule is None else f"{name}, {variant.rule}"


def _panels(models: tuple[str, ...], **options):
    """Makes a figure with a panel for each model, in two rows."""
    columns = -(-len(models) // 2)
    figure = Figure(figsize=(2.75 * columns, 5.8), layout="constrained")
    panels = list(figure.subplots(2, columns, squeeze=False, **options).flat)
    for unused in panels[len(models) :]:
        unused.remove()
    return figure, dict(zip(models, panels, strict=False))


def end_losses(setting: int, records: list[dict]) -> Figure:
    """Draws the best evaluation loss over S, in one panel per model; with several seeds the line is their median."""
    figure, panels = _panels(MODELS[setting], sharex=True)
    for model, axes in panels.items():
        theirs = sorted((S, cell.loss) for (name, S), cell in PUBLISHED[setting].items() if name == model)
        theirs = [(S, loss) for S, loss in theirs if loss is not None]
        axes.plot(
            [S for S, _ in theirs],
            [max(loss, LEAST_LOSS) for _, loss in theirs],
            color=THEIRS,
            lw=1,
            marker="o",
            ms=3,
            mfc="w",
            label="authors",
        )
        found: dict[int, list[float]] = {}
        for record in records:
            if record["model"] == model and record["best_loss"] is not None:
                found.setdefault(record["S"], []).append(max(record["best_loss"], LEAST_LOSS))
        for S, losses in found.items():
            axes.plot([S] * len(losses), losses, ls="", color=OURS, marker="o", ms=4)
        medians = [statistics.median(found[S]) for S in sorted(found)]
        axes.plot(sorted(found), medians, color=OURS, lw=1.5, marker="o", ms=0, label="here")
        axes.axhline(SOLVED, color=MARK, lw=0.8, ls=":", label="solved")
        phi = Variant.of(model).build_feature_map()
        if phi is not None and setting == 1 and not isinstance(phi, Favor):
            axes.axvline(phi.d_dot, color=MARK, lw=0.8, ls="--", label="S = d_dot")
        axes.set_yscale("log")
        axes.set_ylim(LEAST_LOSS * 0.8, 200 if model.endswith("fwm") else 0.8)
        axes.set_title(_title(model), fontsize=9)
    pairs = (pair for axes in panels.values() for pair in zip(*axes.get_legend_handles_labels(), strict=True))
    entries = {label: handle for handle, label in pairs}
    figure.legend(entries.values(), entries.keys(), loc="outside lower right", ncols=4, fontsize=8, frameon=False)
    _finish(figure, TITLES[setting])
    figure.supxlabel("number of keys S", fontsize=9)
    figure.supylabel("best evaluation loss", fontsize=9)
    return figure


def _curve_size(records: list[dict]) -> int | None:
    """The number of keys for which most models have a record; if there are several, the largest."""
    models = {S: {record["model"] for record in records if record["S"] == S} for S in {r["S"] for r in records}}
    return max(models, key=lambda S: (len(models[S]), S), default=None)


def learning_curves(setting: int, records: list[dict], S: int | None = None) -> Figure:
    """Draws the evaluation loss over the steps for every model with S keys, the first seed of each."""
    S = _curve_size(records) if S is None else S
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, model in enumerate(MODELS[setting]):
        runs = sorted((r for r in records if r["model"] == model and r["S"] == S), key=lambda r: r["seed"])
        losses = runs[0]["losses"] if runs else []
        points = [(EVALUATE_EVERY * (n + 1), max(x, LEAST_LOSS)) for n, x in enumerate(losses) if x is not None]
        if points:
            marker = "o" if len(points) < 3 else None
            axes.plot(*zip(*points, strict=True), color=f"C{number}", lw=1.3, marker=marker, ms=3, label=_title(model))
    axes.axhline(SOLVED, color=MARK, lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=LEAST_LOSS * 0.8)
    axes.set_xlabel("steps", fontsize=9)
    axes.set_ylabel("evaluation loss", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
    _finish(figure, f"{TITLES[setting]}, S = {S}")
    return figure


def _finish(figure: Figure, title: str) -> None:
    figure.suptitle(title, fontsize=10)
    for axes in figure.axes:
        axes.tick_params(labelsize=7)
        axes.minorticks_off()
        axes.grid(color="#e6e6e6", lw=0.5)
        axes.spines[["top", "right"]].set_visible(False)


def digest(figure: Figure) -> str:
    """A digest of the points that are drawn, independent of the version of matplotlib; the file contains it."""
    drawn = [
        [axes.get_title(), [[str(line.get_label()), line.get_xydata().round(9).tolist()] for line in axes.lines]]
        for axes in figure.axes
    ]
    return f"points: {hashlib.sha256(json.dumps(drawn).encode()).hexdigest()}"


def _save(figure: Figure, path: Path) -> None:
    described = {"Description": digest(figure)}
    # Without a fixed salt and with a date, every run would write a different SVG.
    with matplotlib.rc_context({"svg.hashsalt": "fwp_fairseq", "svg.fonttype": "none"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None, **described})
    figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None, **described})


def figures(records: list[dict]) -> dict[str, Figure]:
    """Draws two figures for each setting that has records; the keys are the names of their files."""
    found = {}
    for setting, name in ((1, "capacity"), (2, "update-rules")):
        chosen = [record for record in records if record["setting"] == setting]
        if not chosen:
            continue
        found[name] = end_losses(setting, chosen)
        found[f"{name}-curves"] = learning_curves(setting, chosen)
    return found


def draw(records: list[dict], out: Path) -> list[Path]:
    """Writes the figures as .svg and .png; returns their paths without suffix."""
    out.mkdir(parents=True, exist_ok=True)
    found = figures(records)
    for name, figure in found.items():
        _save(figure, out / name)
    return [out / name for name in found]


def main() -> int:
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__)
    results = ROOT / "benchmarks/results"
    parser.add_argument("--results", nargs="+", type=Path, default=[results], metavar="DIR", help="folders of records")
    out = ROOT / "docs/figures/synthetic"
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help="default: docs/figures/synthetic")
    options = parser.parse_args()
    try:
        found = [record for record in read(*options.results) if record.get("table") == "synthetic"]
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not found:
        print(f"error: no record of the synthetic task in {' '.join(map(str, options.results))}", file=sys.stderr)
        return 1
    for path in draw(found, options.out):
        print(f"{path}.svg {path}.png")
    return 0

"""Plots of the paper's Figures 2 to 5 from records: final losses over the number of keys, and learning curves."""

import statistics
from dataclasses import replace

from fwp_fairseq.feature_maps import Favor
from fwp_fairseq.tables.plot import Line, Plot, Series

from .model import rule_and_map
from .outcomes import published
from .rows import EVALUATE_EVERY, MODELS, SOLVED

LEAST_LOSS = 1e-4  # lower losses, including zero, are drawn at this value
_SOLVED = Line("solved", SOLVED, hollow=True)


def _drawn(losses: dict[int, float | None]) -> dict[float, tuple[float, None]]:
    return {x: (max(loss, LEAST_LOSS), None) for x, loss in losses.items() if loss is not None}


def end_losses(setting: int, rows: list[dict]) -> Plot:
    """Plots the best evaluation loss over S, with a panel for each model.

    The ``losses`` of a row map each model to the losses of all its seeds. The line is the median of the seeds.
    """
    models = MODELS[setting]
    columns = -(-len(models) // 2)
    panels = []
    for number, model in enumerate(models):
        ours = {row["S"]: losses for row in rows if (losses := row["losses"].get(model))}
        theirs = {S: cell.loss for (name, S), cell in published(setting).items() if name == model}
        medians = {S: statistics.median(max(loss, LEAST_LOSS) for loss in losses) for S, losses in ours.items()}
        series = [Series("authors", "authors", _drawn(theirs), hollow=True), Series("here", "here", _drawn(medians))]
        for seed in range(max(map(len, ours.values()), default=0)):
            of_seed = {S: losses[seed] for S, losses in ours.items() if 1 < len(losses) > seed}
            series += [Series("each seed", "here", _drawn(of_seed), hollow=True, joined=False)] if of_seed else []
        _, phi = rule_and_map(model)
        with_capacity = phi is not None and setting == 1 and not isinstance(phi, Favor)
        panels.append(
            Plot(
                x="number of keys S" if number + columns >= len(models) else "",
                y="best evaluation loss" if number % columns == 0 else "",
                series=series,
                lines=[_SOLVED],
                title=model,
                log_x=0,
                log_y=10,
                y_range=(LEAST_LOSS * 0.8, 200 if model.endswith("fwm") else 0.8),
                verticals={"S = d_dot": phi.d_dot} if with_capacity else {},
            )
        )
    return replace(panels[0], beside=panels[1:], rows=2)


def learning_curves(setting: int, rows: list[dict]) -> Plot:
    """Plots the evaluation loss of every model over the steps, for the first seed of each.

    The number of keys is the one with which most models were run, and the largest one if there are several.
    """
    models = {S: {row["model"] for row in rows if row["S"] == S} for S in {row["S"] for row in rows}}
    S = max(models, key=lambda S: (len(models[S]), S), default=None)
    series = []
    for model in MODELS[setting]:
        runs = sorted((row for row in rows if row["model"] == model and row["S"] == S), key=lambda row: row["seed"])
        losses = enumerate(runs[0]["losses"] if runs else [], 1)
        points = _drawn({EVALUATE_EVERY * number: loss for number, loss in losses})
        if points:
            series.append(Series(model, model, points, marked=False))
    return Plot(
        x="steps",
        y="evaluation loss",
        series=series,
        lines=[_SOLVED],
        title=f"Setting {setting}, S = {S}",
        log_x=10,
        log_y=10,
        y_range=(LEAST_LOSS * 0.8, None),
    )

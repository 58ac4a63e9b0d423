"""The tables and curves of state tracking: the parity of bits, by kind of fast net, and with one matrix by the range of
beta."""

import statistics
from collections.abc import Callable

from fwp_fairseq.tables.plot import Line, Plot, Series
from fwp_fairseq.tables.table import NONE, Table, number, over_seeds
from scripts.common.cells import fields

from .rows import EVALUATE_EVERY, NETS, RANGES, SOLVED, layer_options


def _place(models: tuple[str, ...]) -> Callable[[dict], tuple | None]:
    """Returns the key of a table of these models."""

    def key(record: dict) -> tuple | None:
        return (models.index(record["model"]),) if record["model"] in models else None

    return key


def _combine(records: list[dict]) -> dict:
    records = list({record["seed"]: record for record in records}.values())
    row = over_seeds("accuracy", "long_accuracy", "cpu_seconds")(records)
    return row | {"runs": records, "solved": [record for record in records if record["stop"] == "solved"]}


def _curves(rows: list[dict]) -> Plot:
    """Plots the mean accuracy of the seeds on the training length; a run that has ended keeps its last one."""
    series = []
    for row in rows:
        longest = max(len(run["accuracies"]) for run in row["runs"])
        runs = [run["accuracies"] + run["accuracies"][-1:] * (longest - len(run["accuracies"])) for run in row["runs"]]
        means = (statistics.fmean(values) for values in zip(*runs, strict=True))
        points = {EVALUATE_EVERY * number: (value, None) for number, value in enumerate(means, 1)}
        series.append(Series(row["model"], row["model"], points, marked=False))
    length = rows[0]["length"] if rows else ""
    return Plot(
        x="updates",
        y=f"accuracy at the end of {length} bits",
        series=series,
        lines=[Line("chance", 0.5)],
        log_x=0,
        y_range=(0.4, 1.02),
    )


def _note(rows: list[dict]) -> str:
    if not rows:
        return ""
    row = rows[0]
    return (
        "Accuracies in percent, at the last tenth of the positions; means over seeds, ± standard deviation. A run ends "
        f"when it is solved ({100 * SOLVED:g}% on both lengths), or after {row['most_steps']:,} updates. CPU seconds "
        "are those of one run on one core."
    )


def _option(name: str) -> Callable[[dict], str]:
    return lambda row: f"`{layer_options(row['model'])[1][name]}`"


_FOUND = {
    "solved": lambda row: f"{len(row['solved'])} of {len(row['runs'])}",
    "after updates": lambda row: ", ".join(str(run["steps"]) for run in row["solved"]) or NONE,
    "trained length": number("accuracy", ".1f", 100),
    "8 times the length": number("long_accuracy", ".1f", 100),
    "CPU seconds": number("cpu_seconds", ".0f"),
}
TABLES = {
    "parity": Table(
        columns={
            **fields({"attention": "model"}),
            "parameters": number("parameters", ","),
            **_FOUND,
        },
        key=_place(NETS),
        combine=_combine,
        note=_note,
        plot=_curves,
    ),
    "parity-beta-range": Table(
        columns={
            "rule": _option("update_rule"),
            "map": lambda row: f"`{layer_options(row['model'])[0]}`",
            "normaliser": _option("normalizer"),
            "beta": _option("beta_range"),
            **_FOUND,
        },
        key=_place(RANGES),
        combine=_combine,
        select={"table": "parity"},
    ),
}

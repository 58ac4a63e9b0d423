"""The tables of BLEU over d_dot, beside Table 1 of the paper."""

from itertools import product

from fwp_fairseq.tables.plot import Line, Plot, Series
from fwp_fairseq.tables.table import NONE, Number, Table, number, over_seeds, update_rule
from scripts.common.cells import TRAINING, d_dot, machine, signature_notes, spread_note
from scripts.common.commands import flags_of
from scripts.common.published import tables

from .presets import PRESETS

published = tables(__file__)

# The order of rows: softmax, then the sum rule, then the delta rule; for each rule the maps as in the paper, by width.
_MAPS = tuple(dict.fromkeys(row["feature_map"] for row in published("table_1")))
_RULES = (None, "sum", "delta", "gated_delta")


def _expected(rows: tuple) -> list[dict]:
    """Returns the rows in the order of the table, as partial records."""
    maps = (*_MAPS, "hybrid")

    def order(row: dict) -> tuple:
        return _RULES.index(row["update_rule"]), maps.index(row["feature_map"]), row["d_dot"] or 0

    names = ("feature_map", "update_rule", "d_dot")
    ordered = sorted((row.recorded for row in rows), key=order)
    return [{name: row[name] for name in names if row[name] is not None} for row in ordered]


_SCORES = ("valid_loss", "valid_bleu", "bleu", "bleu_compound_split")


def _recipe(record: dict) -> tuple:
    """Returns what two trainings must have in common for their seeds to share a row."""
    flags = flags_of(record["train_command"])
    precision = [flag for flag in ("--fp16", "--bf16") if flag in flags]
    return (record["updates"], record["parameters"], flags["--lr"], *precision)


def _key(record: dict) -> tuple:
    return (update_rule(record), record["feature_map"], d_dot(record), str(record["normalizer"]), *_recipe(record))


def _paper(field: str):
    """Returns a column: the paper's BLEU for the attention of the row, or a dash if the paper has none."""

    def cell(record: dict) -> object:
        if record["feature_map"] != "softmax" and record["update_rule"] != "sum":
            return NONE
        for row in published("table_1"):
            if row["feature_map"] == record["feature_map"] and row["d_dot"] == record.get("d_dot"):
                return Number(row[field], ".1f")
        return NONE

    return cell


def _note(rows: list[dict]) -> str:
    lines = signature_notes(rows)
    lines += signature_notes(rows, "sacreBLEU signature with compounds split", "compound_split_signature")
    lines += spread_note(rows, timed=True)
    lines.append("The paper's figures (its Table 1) are for WMT14 English-German with transformer big, one run each.")
    return "\n\n".join(lines)


def _plot(where: str):
    """Plots our figures, and beside them the paper's, which are of another test set and a larger model."""

    def plot(rows: list[dict]) -> Plot:
        lines = [Line(r["row"], r["bleu"], r["spread"].get("bleu")) for r in rows if r["d_dot"] is None]
        newest = {line.label: line for line in lines}  # of several recipes
        ours, theirs = [], []
        for rule, name in product(("sum", "delta"), _MAPS[1:]):
            points = {
                row["d_dot"]: (row["bleu"], row["spread"].get("bleu"))
                for row in rows
                if (row["feature_map"], row["update_rule"]) == (name, rule)
            }
            label = name if rule == "sum" else f"{name},update-rule={rule}"
            ours.append(Series(label, label, points))
        for name in _MAPS[1:]:
            points = {row["d_dot"]: (row["test"], None) for row in published("table_1") if row["feature_map"] == name}
            theirs.append(Series(name, name, points))
        paper = {row["feature_map"]: row["test"] for row in published("table_1")}["softmax"]
        return Plot(
            x="d_dot, features of each head",
            y="BLEU",
            title=f"here: {where}",
            series=[series for series in ours if series.points],
            lines=[*newest.values()],
            beside=[
                Plot(
                    x="d_dot, features of each head",
                    y="BLEU",
                    title="the paper: transformer big, WMT14 newstest2014",
                    series=theirs,
                    lines=[Line("softmax", paper)],
                )
            ],
        )

    return plot


# Only of the paper's own test set.
_WMT14 = {
    "valid BLEU": number("valid_bleu", ".2f"),
    "BLEU, compounds split": number("bleu_compound_split", ".2f"),
    "lr": lambda r: flags_of(r["train_command"])["--lr"],
    "paper, WMT14 big: valid BLEU": _paper("valid"),
}


def _table(preset: str, where: str, same_test_set: bool) -> Table:
    return Table(
        columns={
            "attention": lambda r: r["feature_map"],
            "update rule": update_rule,
            "d_dot": d_dot,
            "BLEU": number("bleu", ".2f"),
            "paper, WMT14 big: BLEU": _paper("test"),
            **(_WMT14 if same_test_set else {}),
            **TRAINING,
            "decoding, peak MiB": number("decode_peak_mib", ",.0f"),
            "machine": machine,
        },
        key=_key,
        combine=over_seeds(*_SCORES, "train_seconds", "decode_seconds", "decode_peak_mib"),
        expected=_expected(PRESETS[preset].rows),
        note=_note,
        select={"table": "bleu_vs_d_dot", "preset": preset},
        plot=_plot(where),
    )


TABLES = {
    "bleu_vs_d_dot-multi30k": _table("multi30k", "Multi30k test_2016_flickr", same_test_set=False),
    "bleu_vs_d_dot-rehearsal": _table("rehearsal", "Multi30k, 100 sentences", same_test_set=False),
    "bleu_vs_d_dot-smoke": _table("smoke", "Multi30k, 100 sentences", same_test_set=False),
    "bleu_vs_d_dot-wmt14": _table("wmt14", "WMT14 newstest2014", same_test_set=True),
}

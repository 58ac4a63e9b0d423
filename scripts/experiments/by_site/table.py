"""The tables of BLEU by site, from the presets `sites` and `de-en`."""

from collections.abc import Callable
from operator import itemgetter

from fwp_fairseq.cli.recipe import NO_SINUSOIDS
from fwp_fairseq.tables.plot import Line, Plot, Series
from fwp_fairseq.tables.table import Table, number, over_seeds
from scripts.common.cells import TRAINING, fields, machine, signature_notes, signatures, spread_note
from scripts.common.commands import flags_of
from scripts.common.row import Row

from .rows import DE_EN_ROWS, FAMILIES, LR, ROWS, replaced

_MEANS = ("valid_loss", "valid_bleu", "bleu", "train_seconds", "decode_seconds")


def _key(record: dict) -> tuple:
    return (*record["kinds"].values(), record["heads"], *_settings(record), record["updates"], record["parameters"])


def _at(site: str) -> Callable[[dict], str]:
    return lambda record: record["kinds"][site]


def _settings(record: dict) -> tuple[float, float]:
    """Returns learning rate and dropout."""
    flags = flags_of(record["train_command"])
    return float(flags["--lr"]), float(flags["--dropout"])


def _place(row: Row) -> str:
    sites = replaced(row)
    return "all" if len(sites) == len(row.kinds) else " +\n".join(sites)


def _plot(rows: list[dict]) -> Plot:
    """Plots BLEU of each family over the sites that have it, with the line of softmax attention at all sites."""

    def bleu(row: Row) -> tuple[float, float | None] | None:
        expected = row.recorded["kinds"], row.recorded["heads"], (LR, row.more["--dropout"])
        # Other settings are not plotted.
        records = (record for record in rows if (record["kinds"], record["heads"], _settings(record)) == expected)
        return next(((record["bleu"], record["spread"].get("bleu")) for record in records), None)

    places = [_place(row) for row in reversed(next(iter(FAMILIES.values())))]
    series = []
    for name, family in FAMILIES.items():
        points = {places.index(_place(row)): at for row in family if (at := bleu(row))}
        series.append(Series(name, name, points, joined=False))
    softmax = bleu(ROWS[0])
    return Plot(
        x="sites without softmax attention",
        y="BLEU, Multi30k test_2016_flickr",
        series=[line for line in series if line.points],
        lines=[] if softmax is None else [Line("softmax at all sites", *softmax)],
        log_x=0,
        names={name: x for x, name in enumerate(places)},
    )


def _by_site(rows: tuple[Row, ...], plot: Callable[[list[dict]], Plot] | None = None) -> Table:
    return Table(
        columns={
            "encoder": _at("encoder"),
            "decoder": _at("decoder"),
            "cross-attention": _at("cross"),
            "sinusoids": lambda record: "no" if NO_SINUSOIDS in record["train_command"] else "yes",
            "heads": lambda record: record["heads"],
            "lr": lambda record: _settings(record)[0],
            "dropout": lambda record: _settings(record)[1],
            "BLEU": number("bleu", ".2f"),
            "valid BLEU": number("valid_bleu", ".2f"),
            **TRAINING,
            "machine": machine,
        },
        key=_key,
        combine=over_seeds(*_MEANS),
        expected=[{name: row.recorded[name] for name in ("kinds", "heads")} | {"row": row.name} for row in rows],
        note=lambda rows: "\n\n".join([*signature_notes(rows), *spread_note(rows, timed=True)]),
        plot=plot,
    )


TABLES = {
    "paired_bootstrap": Table(
        columns={
            **fields({"preset": "preset", "encoder, decoder, cross-attention": "row", "against": "baseline"}),
            "seed": lambda record: str(record["seed"]),
            "BLEU": number("bleu", ".2f"),
            "the other's BLEU": number("baseline_bleu", ".2f"),
            "p": number("p", ".3f"),
        },
        key=itemgetter("preset", "row", "baseline", "seed"),
        note=signatures,
    ),
    "bleu_by_site": _by_site(ROWS, _plot),
    "bleu_of_de_en": _by_site(DE_EN_ROWS),
    "bleu_by_site-rehearsal": _by_site(ROWS, _plot),
    "bleu_by_site-smoke": _by_site(ROWS, _plot),
}

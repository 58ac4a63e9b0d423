"""The table of BLEU by site, from the preset `sites` of scripts/reproduce/wmt14_bleu_vs_d_dot."""

from collections.abc import Callable

from fwp_fairseq.tables.table import Table, number, over_seeds

from .cells import machine, signature_notes, spread_note, training
from .site_rows import ROWS, SITES

_MEANS = ("valid_loss", "valid_bleu", "bleu", "train_seconds", "decode_seconds")


def _at(site: str) -> Callable[[dict], str]:
    return lambda record: record["sites"][site]


def _note(rows: list[dict]) -> str:
    return "\n\n".join([*signature_notes(rows), *spread_note(rows)])


TABLES = {
    "bleu_by_site": Table(
        columns={
            "encoder": _at("encoder"),
            "decoder": _at("decoder"),
            "cross-attention": _at("cross"),
            "heads": lambda record: record["heads"],
            "BLEU": number("bleu", ".2f"),
            "valid BLEU": number("valid_bleu", ".2f"),
            **training(hours=False),
            "machine": machine,
        },
        key=lambda record: (*map(record["sites"].get, SITES), record["heads"], record["updates"], record["parameters"]),
        combine=over_seeds(*_MEANS),
        expected=[row.recorded for row in ROWS],
        note=_note,
    ),
}

"""The table of BLEU over d_dot on IWSLT14 German-English, beside the published results."""

from fwp_fairseq.tables.table import NONE, Number, Table, number, over_seeds, update_rule

from .bleu_vs_d_dot import MEANS, expected, key
from .cells import d_dot, machine, signature_notes, spread_note, training
from .paper import published
from .rows import ROWS_OF_128


def _sites(record: dict) -> str:
    return NONE if record["feature_map"] == "softmax" else record["sites"]


def _published(record: dict) -> object:
    where = (record["feature_map"], record.get("d_dot"), _sites(record))
    for row in published("luo_2021_table_3"):
        if where == (row["feature_map"], row["d_dot"], _sites(row)):
            return Number(row["test"], ".1f")
    return NONE


def _note(rows: list[dict]) -> str:
    lines = []
    for title, field in (("tokenised BLEU", "tokenised_signature"), ("sacreBLEU", "signature")):
        lines += signature_notes(rows, f"{title}, signature", field)
    lines += spread_note(rows)
    lines.append(
        "Sites `decoder`: softmax in the encoder. Published: Luo et al. 2021 (arXiv 2106.12566), Table 3, tokenised "
        "BLEU; random features of width 24."
    )
    return "\n\n".join(lines)


TABLES = {
    "bleu_vs_d_dot-iwslt14": Table(
        columns={
            "attention": lambda r: r["feature_map"],
            "update rule": update_rule,
            "d_dot": d_dot,
            "sites": _sites,
            "tokenised BLEU": number("bleu_tokenised", ".2f"),
            "published": _published,
            "sacreBLEU": number("bleu", ".2f"),
            "valid BLEU": number("valid_bleu", ".2f"),
            **training(hours=True),
            "machine": machine,
        },
        key=lambda record: (*key(record), record["sites"]),
        combine=over_seeds(*(name for name in MEANS if name != "bleu_compound_split"), "bleu_tokenised"),
        expected=expected(ROWS_OF_128, "sites"),
        note=_note,
        select={"table": "bleu_vs_d_dot", "preset": "iwslt14"},
    ),
}

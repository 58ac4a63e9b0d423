"""The table of the experiment quickstart."""

from fwp_fairseq.tables.table import Table, number, update_rule
from scripts.common.cells import TRAINING_TIME, d_dot, machine, signatures


def _key(record: dict) -> tuple:
    what = (record["feature_map"], record["arch"], record.get("variant"), update_rule(record), d_dot(record))
    return (*what, record["seed"], machine(record))


TABLES = {
    "quickstart": Table(
        columns={
            "attention": lambda r: f"{r['feature_map']} ({r['arch']})",
            "update rule": update_rule,
            "d_dot": d_dot,
            "parameters": number("parameters", ","),
            "updates": number("updates", ","),
            **TRAINING_TIME,
            "decoding, seconds": number("decode_seconds", ".0f"),
            "valid loss": number("valid_loss", ".3f"),
            "BLEU": number("bleu", ".2f"),
            "seed": lambda r: r["seed"],
            "machine": machine,
        },
        key=_key,
        expected=[
            {"feature_map": "softmax", "arch": "fwp_transformer_tiny"},
            {"feature_map": "elu", "arch": "fwp_transformer_tiny_hybrid"},
        ],
        note=signatures,
    ),
}

"""The table of scripts/quickstart.sh."""

from fwp_fairseq.tables.table import Table, number, update_rule

from .cells import d_dot, machine, signatures, training_time

TABLES = {
    "quickstart": Table(
        columns={
            "attention": lambda r: f"{r['feature_map']} ({r['arch']})",
            "update rule": update_rule,
            "d_dot": d_dot,
            "parameters": number("parameters", ","),
            "updates": number("updates", ","),
            **training_time(hours=False),
            "decoding, seconds": number("decode_seconds", ".0f"),
            "valid loss": number("valid_loss", ".3f"),
            "BLEU": number("bleu", ".2f"),
            "seed": lambda r: r["seed"],
            "machine": machine,
        },
        key=lambda r: (r["feature_map"], r["arch"], r.get("variant"), update_rule(r), d_dot(r), r["seed"], machine(r)),
        expected=[
            {"feature_map": "dpfp", "arch": "fwp_transformer_tiny"},
            {"feature_map": "softmax", "arch": "fwp_transformer_tiny"},
            {"feature_map": "elu, slots", "arch": "fwp_transformer_tiny_parity"},
        ],
        note=signatures,
    ),
}

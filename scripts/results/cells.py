"""Cells and notes that several tables share."""

from fwp_fairseq.tables.table import NONE


def machine(record: dict) -> str:
    where = record["environment"]
    return where.get("gpu") or f"{where['cores']} × {where['cpu']}"


def d_dot(record: dict) -> object:
    if record["feature_map"] == "softmax":
        return NONE
    return "natural" if record["d_dot"] is None else record["d_dot"]


def signatures(rows: list[dict]) -> str:
    return "\n".join(f"sacreBLEU signature: `{text}`" for text in dict.fromkeys(row["signature"] for row in rows))

"""The models that the quickstart has trained from the beginning, side by side."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.common.columns import in_columns
from scripts.common.progress import duration

_HEAD = ["model", "attention", "BLEU", "valid loss", "parameters", "updates", "training", "decoding", "seed"]


def side_by_side(out: Path, smoke: bool) -> list[str]:
    """The lines of a table of the finished models below ``out``, those of --smoke or the others; the best one first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*/record.json")]
    found = [record for record in found if record["variant"].startswith("smoke") == smoke]
    lines = in_columns([_HEAD, *map(_cells, sorted(found, key=lambda record: -record["bleu"]))])
    if all(record["feature_map"] != "softmax" for record in found):
        lines += ["", "scripts/quickstart.sh --baseline trains softmax attention alike, for comparison."]
    return lines


def _cells(record: dict) -> list[str]:
    loss, parameters = record["valid_loss"], record["parameters"]
    return [
        record["variant"],
        record["feature_map"],
        f"{record['bleu']:.2f}",
        "-" if loss is None else f"{loss:.3f}",
        f"{parameters:,}" if parameters else "-",
        f"{record['updates']:,}",
        duration(record["train_seconds"]),
        duration(record["decode_seconds"]),
        str(record["seed"]),
    ]

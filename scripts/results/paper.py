"""Reads published results from paper.json, which names the paper and, for other tables than its own, their sources."""

import json
from functools import cache
from pathlib import Path


@cache
def published(table: str) -> list[dict]:
    """Returns the rows of a table of the paper, e.g. ``table_1``."""
    return json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))[table]["rows"]

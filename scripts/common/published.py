"""Reads published results, which stand in a file paper.json beside the code that shows them, with their sources."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path


def tables(beside: str) -> Callable[[str], list[dict]]:
    """Returns a function of the name of a table, e.g. ``table_1``, that returns its rows in the file of this folder."""

    @cache
    def published(table: str) -> list[dict]:
        return json.loads(Path(beside).with_name("paper.json").read_text(encoding="utf-8"))[table]["rows"]

    return published

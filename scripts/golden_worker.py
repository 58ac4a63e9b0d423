"""Runs `fairseq-TOOL` with unrounded numbers in its log: python golden_worker.py TOOL ARGUMENTS."""

import importlib
import sys
from numbers import Number

from fairseq.logging import meters, progress_bar


def _format(stat) -> str:
    if isinstance(stat, Number):
        return repr(stat)
    for name in ("avg", "sum"):
        if hasattr(stat, name):
            value = getattr(stat, name)
            return repr(value.item() if hasattr(value, "item") else value)
    return str(stat)


meters.safe_round = lambda number, digits: number.item() if hasattr(number, "item") else number
progress_bar.format_stat = _format
tool = sys.argv.pop(1)
importlib.import_module(f"fairseq_cli.{tool}").cli_main()

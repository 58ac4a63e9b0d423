"""Reads the validations of a training from its logs, with any --log-format."""

import ast
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from .progress import numbers

_VALIDATION = re.compile(r"""(\{.*"valid_loss".*\}|epoch \d+ \| valid on 'valid' subset \| .*)$""")
# The first line of fairseq-train, its configuration.
_SAVE_DIR = re.compile(r"""['"]save_dir['"]: ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def lines_of(path: Path, newline: str | None = None) -> Iterator[str]:
    if path.is_file():
        with open(path, encoding="utf-8", errors="replace", newline=newline) as file:
            yield from file


def validations(paths: list[Path], save_dir: str | None) -> dict:
    """Returns the best loss and BLEU of all validations of trainings that saved in ``save_dir``."""
    values_of: dict[str, list[float]] = {"loss": [], "bleu": []}
    curve: dict[int, list] = {}
    for path in paths:
        own = True
        for line in lines_of(path):
            if match := _SAVE_DIR.search(line):
                own = ast.literal_eval(match[1]) == save_dir
            elif own and (match := _VALIDATION.search(line)):
                values = _numbers(match[1])
                for name in values_of:
                    if (value := values.get(name, math.nan)) == value:
                        values_of[name].append(value)
                if math.isfinite(values.get("num_updates", math.nan)):
                    # A criterion that gives a perplexity and no nll_loss has the likelihood as its loss.
                    nll = values.get("nll_loss", values.get("loss") if "ppl" in values else None)
                    curve[int(values["num_updates"])] = [nll, values.get("bleu")]
    best = {"valid_loss": min(values_of["loss"], default=None), "valid_bleu": max(values_of["bleu"], default=None)}
    best["curve"] = [[updates, *curve[updates]] for updates in sorted(curve)] or None
    return {name: value for name, value in best.items() if value is not None}


def _numbers(text: str) -> dict[str, float]:
    """Parses the numbers in a line of JSON, or of the form `epoch 001 | valid on 'valid' subset | loss 3.21 | ...`."""
    if text.startswith("{"):
        try:
            pairs = json.loads(text).items()
        except ValueError:  # a line into which two processes wrote at once
            return {}
    else:
        pairs = (part.strip().rpartition(" ")[::2] for part in text.split("|"))
    return {name.strip().removeprefix("valid_"): value for name, value in numbers(pairs).items()}

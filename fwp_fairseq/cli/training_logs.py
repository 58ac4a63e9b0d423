"""Reads the validations of a training from its logs, with any --log-format."""

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .progress import numbers

_VALIDATION = re.compile(r"""(\{.*"valid_loss".*\}|epoch \d+ \| valid on 'valid' subset \| .*)$""")
# The first line of fairseq-train, its configuration.
_SAVE_DIR = re.compile(r"""['"]save_dir['"]: ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")

_LOADED = re.compile(r"Loaded checkpoint (.+) \(epoch \d+ @ \d+ updates\)")


def lines_of(path: Path, newline: str | None = None) -> Iterator[str]:
    if path.is_file():
        with open(path, encoding="utf-8", errors="replace", newline=newline) as file:
            yield from file


@dataclass
class _Session:
    """What one call of fairseq-train wrote to a log; ``goes_on`` if it loaded a checkpoint that lay in ``save_dir``."""

    save_dir: str | None
    goes_on: bool = False
    validations: list[str] = field(default_factory=list)


def _sessions(path: Path) -> list[_Session]:
    sessions = []
    for line in lines_of(path):
        if match := _SAVE_DIR.search(line):
            sessions.append(_Session(ast.literal_eval(match[1])))
        elif sessions and (match := _LOADED.search(line)):
            sessions[-1].goes_on |= Path(match[1]).parent == Path(sessions[-1].save_dir)
        elif match := _VALIDATION.search(line):
            sessions = sessions or [_Session(None)]
            sessions[-1].validations.append(match[1])
    return sessions


def _own(sessions: list[_Session], save_dir: str | None) -> list[_Session]:
    """Selects the sessions of the training that saved in ``save_dir`` last; its folder may have been renamed before."""
    own = [number for number, session in enumerate(sessions) if session.save_dir in (save_dir, None)]
    while own and own[0] > 0 and sessions[own[0]].goes_on:
        own.insert(0, own[0] - 1)
    return [sessions[number] for number in own]


def validations(paths: list[Path], save_dir: str | None) -> dict:
    """Returns the best loss and BLEU of all validations of the training that saved in ``save_dir``, and its curve."""
    values_of: dict[str, list[float]] = {"loss": [], "bleu": []}
    curve: dict[int, list] = {}
    for session in (session for path in paths for session in _own(_sessions(path), save_dir)):
        for values in map(_numbers, session.validations):
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

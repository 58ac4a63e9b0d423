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
_CHECKPOINT = re.compile(r"(Loaded|Saved) checkpoint .+ \(epoch \d+ @ (\d+) updates")
# The first line of fairseq-train, its configuration.
_SAVE_DIR = re.compile(r"""['"]save_dir['"]: ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def lines_of(path: Path, newline: str | None = None) -> Iterator[str]:
    if path.is_file():
        with open(path, encoding="utf-8", errors="replace", newline=newline) as file:
            yield from file


@dataclass
class _Session:
    """What one call of fairseq-train wrote to a log: the updates of the checkpoints that it loaded and saved too."""

    save_dir: str | None
    loaded: str | None = None
    saved: set[str] = field(default_factory=set)
    validations: list[str] = field(default_factory=list)


def _sessions(path: Path) -> list[_Session]:
    """Reads the sessions of a log; what precedes the first configuration belongs to a session without a folder."""
    sessions = [_Session(None)]
    for line in lines_of(path):
        if match := _SAVE_DIR.search(line):
            sessions.append(_Session(ast.literal_eval(match[1])))
        elif match := _CHECKPOINT.search(line):
            if match[1] == "Loaded":
                sessions[-1].loaded = match[2]
            else:
                sessions[-1].saved.add(match[2])
        elif match := _VALIDATION.search(line):
            sessions[-1].validations.append(match[1])
    return sessions


def _own(sessions: list[_Session], save_dir: str | None) -> list[_Session]:
    """Selects the sessions of the training that saved in ``save_dir`` last.

    Its folder may have been renamed before, so that earlier sessions saved elsewhere: a session goes on with the latest
    one before it that saved a checkpoint of as many updates as it loaded.
    """
    own = [number for number, session in enumerate(sessions) if session.save_dir in (save_dir, None)]
    for number in own:  # which grows
        before = next((n for n in reversed(range(number)) if sessions[number].loaded in sessions[n].saved), number)
        if before not in own:
            own.append(before)
    return [sessions[number] for number in sorted(own)]


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

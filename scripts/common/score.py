"""Runs `fwp bleu` and reads its output."""

from __future__ import annotations

import json
import math
from pathlib import Path

from . import process
from .folder import RecipeError


def bleu(command: list[str], log: Path, **options) -> list[dict]:
    """Runs `command` and returns the "bleu" and sacreBLEU's "signature" of each score. Raises RecipeError."""
    return [_plain(result) for result in _json(command, log, **options)]


def paired(command: list[str], log: Path) -> list[dict]:
    """Runs `command`, which compares systems, and returns what `fwp bleu --json` says of the BLEU of each."""
    return [result["BLEU"] for result in _json(command, log)]


def _json(command: list[str], log: Path, **options) -> list[dict]:
    log.unlink(missing_ok=True)
    process.run([*command, "--json"], log, **options)
    output = log.read_text(encoding="utf-8")
    return json.loads(output[output.index("\n[") :])


def _plain(result: dict) -> dict:
    score = float(result["score"])
    if not math.isfinite(score):
        raise RecipeError(f"BLEU is not a number: {score}")
    return {"bleu": score, "signature": f"BLEU|{result['signature']}".replace("BLEU|BLEU|", "BLEU|")}

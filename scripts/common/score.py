"""Runs `fwp bleu` and reads its output."""

import json
import math
from pathlib import Path

from . import process
from .errors import RecipeError


def bleu(command: list[str], log: Path, **options) -> list[dict]:
    """Runs `command` and returns the "bleu" and sacreBLEU's "signature" of each score. Raises RecipeError."""
    log.unlink(missing_ok=True)
    process.run([*command, "--json"], log, **options)
    output = log.read_text(encoding="utf-8")
    return [_plain(result) for result in json.loads(output[output.index("\n[") :])]


def _plain(result: dict) -> dict:
    score = float(result["score"])
    if not math.isfinite(score):
        raise RecipeError(f"BLEU is not a number: {score}")
    return {"bleu": score, "signature": f"BLEU|{result['signature']}"}

"""Runs `fwp bleu` and reads what it printed."""

from __future__ import annotations

import json
import math
from pathlib import Path

from . import process
from .folder import RecipeError


def bleu(command: list[str], log: Path, **options) -> dict:
    """{"bleu": score, "signature": sacreBLEU's, beginning with BLEU}. Raises RecipeError."""
    log.unlink(missing_ok=True)
    process.run([*command, "--json"], log, **options)
    output = log.read_text(encoding="utf-8")
    (result,) = json.loads(output[output.index("\n[") :])
    score = float(result["score"])
    if not math.isfinite(score):
        raise RecipeError(f"BLEU is not a number: {score}")
    return {"bleu": score, "signature": f"BLEU|{result['signature']}".replace("BLEU|BLEU|", "BLEU|")}

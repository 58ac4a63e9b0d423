"""Takes one run from training to its record. Keeps steps that are finished, and continues an interrupted one."""

from __future__ import annotations

import json
import math

from scripts.common import process
from scripts.common.commands import as_run
from scripts.common.folder import RecipeError
from scripts.common.progress import duration
from scripts.common.sweep.gpus import visible
from scripts.common.sweep.parallel import Sweep
from scripts.common.sweep.run import Work, carry_out
from scripts.results.language_model_rows import MEASURES

from . import commands
from .commands import EVALUATED, Run

STEPS = ("train", *EVALUATED)
FILE = "language_models.jsonl"
FOUND = ("bits_per_token", "perplexity", "word_perplexity", "tokens", "words")


def train_and_evaluate(run: Run, gpus: tuple[int, ...], sweep: Sweep, slot: int = 0) -> dict:
    """Trains and evaluates; returns the record and appends it to every file that does not have it.

    Raises RecipeError if a tool fails or another process works on the same run.
    """
    configuration = commands.configuration(run)
    record = carry_out(run, STEPS, configuration, sweep, slot, visible(gpus), lambda work: _results(run, gpus, work))
    field, measure = MEASURES[run.preset.name]
    found = ", ".join(f"{split} {record[split][field]:.3f}" for split in EVALUATED)
    seconds = f"training {duration(record['train_seconds'])}, evaluation {duration(record['eval_seconds'])}"
    sweep.say(f"{run.name}: {measure}: {found} ({seconds})")
    return record


def _results(run: Run, gpus: tuple[int, ...], work: Work) -> dict:
    """Returns the record; runs the steps that are not finished."""
    trained = work.train(commands.train(run, gpus), run.checkpoint)
    evaluated: dict[str, dict] = {}
    for split in EVALUATED:
        evaluated[split] = _evaluated(run, gpus, work, split, evaluated)
    return _record(run, work, trained, evaluated)


def _evaluated(run: Run, gpus: tuple[int, ...], work: Work, split: str, before: dict[str, dict]) -> dict:
    """Evaluates one part of the text unless that is done; ``before`` are the results of earlier parts."""
    command, log = commands.evaluate(run, split, gpus), run.log(split)

    def evaluate() -> dict:
        work.say(f"evaluating {split}{_expected(before, run, split)}")
        log.unlink(missing_ok=True)
        used = process.run(command, log, **work.options)
        peak = None if gpus else used.peak_mib
        return _score(run, split, work.options) | {"seconds": used.seconds, "peak_mib": peak}

    # A run that began without a GPU may continue with one.
    inputs = [word for word in command if word != "--cpu"]
    return work.step(split, inputs, [log], evaluate) | {"command": as_run(command)}


def _expected(evaluated: dict[str, dict], run: Run, split: str) -> str:
    """Returns how long the evaluation will take, estimated from the first part, or "" for that one.

    In a log file, fairseq-eval-lm itself shows no progress.
    """
    if not evaluated:
        return ""
    before, found = next(iter(evaluated.items()))
    seconds = found["seconds"] * run.text(split).stat().st_size / max(1, run.text(before).stat().st_size)
    return f", about {duration(seconds)}"


def _score(run: Run, split: str, options: dict) -> dict:
    log = run.path / f"{split}-ppl.log"
    log.unlink(missing_ok=True)
    process.run(commands.perplexity(run, split), log, **options)
    found = json.loads(log.read_text(encoding="utf-8").strip().splitlines()[-1])
    if not math.isfinite(found["bits_per_token"]):
        raise RecipeError(f"{run.log(split)}: the loss is not a number: {found['bits_per_token']}")
    return {name: found[name] for name in FOUND}


def _record(run: Run, work: Work, trained: dict, evaluated: dict[str, dict]) -> dict:
    peaks = [found["peak_mib"] for found in evaluated.values()]
    return work.record(
        "language_models",
        trained,
        positions=run.row.positions,
        state=run.row.state,
        state_numbers=run.state_numbers,
        **{split: {name: evaluated[split][name] for name in FOUND} for split in EVALUATED},
        eval_seconds=round(sum(found["seconds"] for found in evaluated.values()), 1),
        eval_peak_mib=None if None in peaks else round(max(peaks)),
        recipe=work.configuration,
        eval_commands=[evaluated[split]["command"] for split in EVALUATED],
    )

"""Takes one run from training to its record. Keeps steps that are finished, and continues an interrupted one."""

from __future__ import annotations

import json
import math
import shlex

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
    trained = work.train(commands.train(run, gpus), commands.configuration(run), run.checkpoint)
    evaluated: dict[str, dict] = {}
    for split in EVALUATED:
        command, log = commands.evaluate(run, split, gpus), run.log(split)

        def evaluate(split=split, command=command, log=log) -> dict:
            work.say(f"evaluating {split}{_expected(evaluated, run, split)}")
            log.unlink(missing_ok=True)
            used = process.run(command, log, **work.options)
            peak = None if gpus else used.peak_mib
            return _score(run, split, work.options) | {"seconds": used.seconds, "peak_mib": peak}

        # A run that began without a GPU may continue with one.
        inputs = [word for word in command if word != "--cpu"]
        evaluated[split] = work.step(split, inputs, [log], evaluate) | {"command": as_run(command)}
    return _record(run, work.sweep, trained, evaluated)


def _expected(evaluated: dict[str, dict], run: Run, split: str) -> str:
    """Returns how long the evaluation will take, estimated from the part before it, or "" for the first part.

    In a log file, fairseq-eval-lm itself shows no progress.
    """
    for before, found in evaluated.items():
        seconds = found["seconds"] * run.text(split).stat().st_size / max(1, run.text(before).stat().st_size)
        return f", about {duration(seconds)}"
    return ""


def _score(run: Run, split: str, options: dict) -> dict:
    log = run.path / f"{split}-ppl.log"
    log.unlink(missing_ok=True)
    process.run(commands.perplexity(run, split), log, **options)
    found = json.loads(log.read_text(encoding="utf-8").strip().splitlines()[-1])
    if not math.isfinite(found["bits_per_token"]):
        raise RecipeError(f"{run.log(split)}: the loss is not a number: {found['bits_per_token']}")
    return {name: found[name] for name in FOUND}


def _record(run: Run, sweep: Sweep, trained: dict, evaluated: dict[str, dict]) -> dict:
    peaks = [found["peak_mib"] for found in evaluated.values()]
    return {
        "table": "language_models",
        "preset": run.preset.name,
        "row": run.row.name,
        "feature_map": run.row.feature_map,
        "update_rule": run.row.update_rule,
        "normalizer": run.row.normalizer,
        "d_dot": run.row.d_dot,
        "positions": run.row.positions,
        "state": run.row.state,
        "seed": run.seed,
        "updates": trained["updates"],
        "parameters": trained["parameters"],
        "state_numbers": run.state_numbers,
        "valid_loss": trained["valid_loss"],
        **{split: {name: evaluated[split][name] for name in FOUND} for split in EVALUATED},
        "threads": trained["threads"],
        "train_seconds": round(trained["seconds"], 1),
        "eval_seconds": round(sum(found["seconds"] for found in evaluated.values()), 1),
        "eval_peak_mib": None if None in peaks else round(max(peaks)),
        "recipe": commands.configuration(run),
        "train_command": trained["command"],
        "eval_commands": [evaluated[split]["command"] for split in EVALUATED],
        "command": shlex.join(sweep.command),
        "environment": trained["environment"],
    }

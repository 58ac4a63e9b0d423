"""One run from training to record: what is finished is kept, what was interrupted is continued."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path

from scripts.common import process, training
from scripts.common.commands import as_run
from scripts.common.folder import Folder, RecipeError
from scripts.common.progress import duration, loss_problem
from scripts.common.sweep import Sweep, SweepDisplay
from scripts.results.language_model_rows import MEASURES

from . import commands
from .commands import EVALUATED, Run

STEPS = ("train", *EVALUATED)
FILE = "language_models.jsonl"
FOUND = ("bits_per_token", "perplexity", "word_perplexity", "tokens", "words")


def key(record: dict) -> tuple:
    return record["preset"], record["row"], record["seed"]


def recorded(path: Path) -> set[tuple]:
    """Keys of the records in one file. Raises ValueError naming a line that is no record."""
    from scripts.results import records

    return {key(record) for record in records.read_file(path)} if path.is_file() else set()


def train_and_evaluate(run: Run, gpus: tuple[int, ...], sweep: Sweep, slot: int = 0) -> dict:
    """Trains and evaluates; appends the record to every file that lacks it, and returns it.

    Raises RecipeError when a tool fails or another process works on the same run.
    """
    from scripts.results import records

    def say(text: str) -> None:
        sweep.say(f"{run.name}: {text}")

    folder = Folder(run.path, STEPS)
    with folder.locked():
        folder.claim(commands.configuration(run))
        record = _record(run, sweep, *_results(run, gpus, sweep, slot, folder, say))
        for path in sweep.records:
            if key(record) not in recorded(path):
                records.append(path, record)
    field, measure = MEASURES[run.preset.name]
    found = ", ".join(f"{split} {record[split][field]:.3f}" for split in EVALUATED)
    seconds = f"training {duration(record['train_seconds'])}, evaluation {duration(record['eval_seconds'])}"
    say(f"{measure}: {found} ({seconds})")
    return record


def _results(run: Run, gpus: tuple[int, ...], sweep: Sweep, slot: int, folder: Folder, say: Callable) -> tuple:
    """Returns what training and evaluation found. Does each of them unless it is done already."""
    from scripts.results import records

    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
    options = {"variables": process.environment(sweep.jobs) | visible, "on_tick": sweep.check}
    train = commands.train(run, gpus)

    def step(name: str, inputs, outputs: list[Path], work: Callable[[], dict]) -> dict:
        result = folder.result(name, inputs, outputs)
        if result is None:
            sweep.check()
            folder.begin(name)
            result = folder.finish(name, inputs, work())
        return result

    def work_train() -> dict:
        environment = records.environment()
        say("training")
        display = SweepDisplay(training.progress(train), sweep, run.name, slot)
        return training.train(run.path, train, display, say, **options) | {
            "command": as_run(train),
            "threads": int(options["variables"]["OMP_NUM_THREADS"]),
            "environment": environment,
        }

    trained = step("train", commands.configuration(run), [run.checkpoint], work_train)
    if problem := loss_problem(trained):  # a result too, and recorded
        say(f"{problem}; see {run.path}/train.log")
    evaluated: dict[str, dict] = {}
    for split in EVALUATED:
        command, log = commands.evaluate(run, split, gpus), run.log(split)

        def work_evaluate(split=split, command=command, log=log) -> dict:
            say(f"evaluating {split}{_expected(evaluated, run, split)}")
            log.unlink(missing_ok=True)
            used = process.run(command, log, **options)
            peak = None if gpus else used.peak_mib
            return _score(run, split, options) | {"seconds": used.seconds, "peak_mib": peak}

        # A folder goes on with a GPU where it began without one.
        inputs = [word for word in command if word != "--cpu"]
        evaluated[split] = step(split, inputs, [log], work_evaluate) | {"command": as_run(command)}
    return trained, evaluated


def _expected(evaluated: dict[str, dict], run: Run, split: str) -> str:
    """How long it will take, from the part before it; fairseq-eval-lm itself shows no progress in a log."""
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

"""Takes one run from training to its record. Keeps steps that are finished, and continues an interrupted one."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from scripts.common import process, score, training
from scripts.common.commands import as_run
from scripts.common.folder import Folder
from scripts.common.progress import duration, loss_problem
from scripts.common.sweep import Sweep, SweepDisplay

from . import commands
from .commands import Devices, Run

STEPS = ("train", "average", "generate", "bleu")
FILE = "bleu_vs_d_dot.jsonl"


def key(record: dict) -> tuple:
    """Returns what identifies a run among records: preset, row and seed."""
    return record["preset"], record["row"], record["seed"]


def recorded(path: Path) -> set[tuple]:
    """Returns the keys of the records in one file. Raises ValueError for a line that is no record, naming it."""
    from scripts.results import records

    return {key(record) for record in records.read_file(path)} if path.is_file() else set()


def train_and_score(run: Run, devices: Devices, sweep: Sweep, slot: int = 0) -> dict:
    """Trains, decodes and scores; returns the record and appends it to every file that does not have it.

    Raises RecipeError if a tool fails or another process works on the same run.
    """
    from scripts.results import records

    def say(text: str) -> None:
        sweep.say(f"{run.name}: {text}")

    folder = Folder(run.path, STEPS)
    with folder.locked():
        folder.claim(commands.configuration(run, devices))
        record = _record(run, sweep, *_results(run, devices, sweep, slot, folder, say))
        for path in sweep.records:
            if key(record) not in recorded(path):
                records.append(path, record)
    split = f", compounds split {record['bleu_compound_split']:.2f}" if run.preset.compound_split else ""
    seconds = f"training {duration(record['train_seconds'])}, decoding {duration(record['decode_seconds'])}"
    say(f"BLEU {record['bleu']:.2f}{split} ({seconds})")
    say(record["signature"])
    if split:
        say(record["compound_split_signature"])
    return record


def _results(run: Run, devices: Devices, sweep: Sweep, slot: int, folder: Folder, say: Callable[[str], None]) -> tuple:
    """Returns the results of training, decoding and scoring; runs the steps that are not finished."""
    from scripts.results import records

    options = {"variables": process.environment(sweep.jobs) | devices.variables, "on_tick": sweep.check}
    configuration = commands.configuration(run, devices)
    train, decode, bleu = commands.train(run, devices), commands.generate(run, devices), commands.bleu(run)

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

    def work_average() -> dict:
        process.run(commands.average(run), run.path / "average.log", **options)
        return {}

    def work_generate() -> dict:
        shutil.rmtree(run.generated.parent, ignore_errors=True)
        say("decoding")
        used = process.run(decode, run.path / "generate.log", **options)
        return {"seconds": used.seconds, "peak_mib": None if devices.gpus else used.peak_mib}

    last = run.path / "checkpoints/checkpoint_last.pt"
    trained = step("train", configuration, [last], work_train)
    if problem := loss_problem(trained):  # this is a result too, and is recorded
        say(f"{problem}; see {run.path}/train.log")
    if run.preset.average is not None:
        step("average", commands.average(run), [run.checkpoint], work_average)
    decoded = step("generate", decode, [run.generated], work_generate)
    scored = step("bleu", bleu, [], lambda: {"scores": score.bleu(bleu, run.path / "bleu.log", **options)})
    return trained, decoded, scored["scores"]


def _record(run: Run, sweep: Sweep, trained: dict, decoded: dict, scores: list[dict]) -> dict:
    row, split = run.row, run.preset.compound_split
    return {
        "table": "bleu_vs_d_dot",
        "preset": run.preset.name,
        "row": row.name,
        "feature_map": row.feature_map,
        "update_rule": row.update_rule,
        "normalizer": row.normalizer,
        "d_dot": row.d_dot,
        "seed": run.seed,
        "updates": trained["updates"],
        "parameters": trained["parameters"],
        "valid_loss": trained["valid_loss"],
        "valid_bleu": trained["valid_bleu"],
        **scores[0],
        "bleu_compound_split": scores[1]["bleu"] if split else None,
        "compound_split_signature": scores[1]["signature"] if split else None,
        "threads": trained["threads"],
        "train_seconds": round(trained["seconds"], 1),
        "decode_seconds": round(decoded["seconds"], 1),
        "decode_peak_mib": decoded["peak_mib"] and round(decoded["peak_mib"]),
        "train_command": trained["command"],
        "command": shlex.join(sweep.command),
        "environment": trained["environment"],
    }

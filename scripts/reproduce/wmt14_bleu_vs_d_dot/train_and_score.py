"""Takes one run from training to its record. Keeps steps that are finished, and continues an interrupted one."""

from __future__ import annotations

import shutil

from scripts.common import process, score
from scripts.common.progress import duration
from scripts.common.sweep.parallel import Sweep
from scripts.common.sweep.run import Work, carry_out

from . import commands
from .commands import Devices, Run

STEPS = ("train", "average", "generate", "bleu")
FILE = "bleu_vs_d_dot.jsonl"
# A second score of some presets: its name in a record, and for the user.
SECOND = {"compound_split": "compounds split", "tokenised": "tokenised"}


def train_and_score(run: Run, devices: Devices, sweep: Sweep, slot: int = 0) -> dict:
    """Trains, decodes and scores; returns the record and appends it to every file that does not have it.

    Raises RecipeError if a tool fails or another process works on the same run.
    """
    configuration = commands.configuration(run, devices)
    record = carry_out(
        run, STEPS, configuration, sweep, slot, devices.variables, lambda work: _results(run, devices, work)
    )
    second = [kind for kind in SECOND if record[f"bleu_{kind}"] is not None]
    more = "".join(f", {SECOND[kind]} {record[f'bleu_{kind}']:.2f}" for kind in second)
    seconds = f"training {duration(record['train_seconds'])}, decoding {duration(record['decode_seconds'])}"
    sweep.say(f"{run.name}: BLEU {record['bleu']:.2f}{more} ({seconds})")
    for signature in ("signature", *(f"{kind}_signature" for kind in second)):
        sweep.say(f"{run.name}: {record[signature]}")
    return record


def _results(run: Run, devices: Devices, work: Work) -> dict:
    """Returns the record; runs the steps that are not finished."""
    decode, bleu = commands.generate(run, devices), commands.all_bleu(run)

    def average() -> dict:
        process.run(commands.average(run), run.path / "average.log", **work.options)
        return {}

    def generate() -> dict:
        shutil.rmtree(run.generated.parent, ignore_errors=True)
        work.say("decoding")
        used = process.run(decode, run.path / "generate.log", **work.options)
        return {"seconds": used.seconds, "peak_mib": None if devices.gpus else used.peak_mib}

    def scores() -> dict:
        logs = ("bleu.log", "bleu_tokenised.log")
        found = [score.bleu(command, run.path / log, **work.options) for command, log in zip(bleu, logs, strict=False)]
        return {"scores": [one for several in found for one in several]}

    last = run.path / "checkpoints/checkpoint_last.pt"
    trained = work.train(commands.train(run, devices), last)
    if run.preset.average is not None:
        work.step("average", commands.average(run), [run.checkpoint], average)
    decoded = work.step("generate", decode, [run.generated], generate)
    scored = work.step("bleu", bleu, [], scores)
    return _record(run, work, trained, decoded, scored["scores"])


def _record(run: Run, work: Work, trained: dict, decoded: dict, scores: list[dict]) -> dict:
    second = scores[1] if len(scores) > 1 else None
    kinds = {"compound_split": run.preset.compound_split, "tokenised": run.preset.tokens is not None}
    more = {kind: second if has else None for kind, has in kinds.items()}
    return work.record(
        run.preset.table,
        trained,
        **run.attention.recorded,
        valid_bleu=trained["valid_bleu"],
        **scores[0],
        **{f"bleu_{kind}": found and found["bleu"] for kind, found in more.items()},
        **{f"{kind}_signature": found and found["signature"] for kind, found in more.items()},
        decode_seconds=round(decoded["seconds"], 1),
        decode_peak_mib=decoded["peak_mib"] and round(decoded["peak_mib"]),
    )

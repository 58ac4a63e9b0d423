"""Trains one model of the quickstart, decodes and scores it: from corpus to BLEU."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path

from scripts.common import interruption, process, score, training
from scripts.common.commands import as_run, flags_of
from scripts.common.folder import Folder, RecipeError, write_atomically
from scripts.common.progress import DecodingDisplay, TrainingDisplay, duration, loss_problem, on_terminal
from scripts.common.steps import Steps
from scripts.data import corpus, multi30k

from . import commands, comparison, settings

RUN_STEPS = ("train", "average", "generate", "bleu")
RECORDS = Path("benchmarks/results/quickstart.jsonl")


def device(cpu: bool) -> list[str]:
    """The flags that select the device: a CPU or one GPU, because on several fairseq would multiply the batch."""
    with interruption.delayed():
        import torch

    return ["--cpu"] if cpu or not torch.cuda.is_available() else ["--distributed-world-size", "1"]


def generate(folder: Folder, command: list[str], output: Path, expected: int) -> dict:
    from scripts.results import records

    conditions = {"environment": records.environment()}
    shutil.rmtree(output.parent, ignore_errors=True)
    display = DecodingDisplay(output, expected, on_terminal())
    begin = time.monotonic()
    try:
        process.run(command, folder.path / "generate.log", on_tick=display.tick)
    finally:
        display.close()
    seconds = time.monotonic() - begin
    translations = {}
    for line in output.read_text(encoding="utf-8").split("\n"):
        if line.startswith("D-"):
            number, _, text = line.split("\t", 2)
            translations[int(number[2:])] = text
    if sorted(translations) != list(range(expected)):
        raise RecipeError(f"{output}: expected {expected} translations, actual {len(translations)}")
    write_atomically(folder.path / "translations.de", "".join(f"{translations[i]}\n" for i in range(expected)))
    return {"seconds": seconds, **conditions}


def train_and_score(options) -> None:
    """Does every unfinished step of the model that these options describe."""
    print(f"+ {shlex.join(options.command)}", flush=True)
    if options.record:
        from scripts.results import records

        records.require_commit()
    smoke, data, run = options.smoke, options.out / "data", options.out / options.name
    steps = Steps(len(corpus.STEPS) + len(RUN_STEPS))
    where = device(options.cpu)
    corpus.prepare(steps, data)

    folder = Folder(run, RUN_STEPS)
    with folder.locked():
        command = commands.train(data, run, options.attention, smoke, options.seed, where, options.train_flags)
        folder.claim(flags_of(command))
        average, decode = commands.average(run, smoke), commands.generate(data, run, smoke, where)
        output, bleu = commands.generated(run, smoke), commands.bleu(data, run, smoke)
        checkpoint = commands.averaged(run)
        expected = corpus.SMOKE_SENTENCES if smoke else multi30k.SPLITS["test_2016_flickr"]

        last = run / "checkpoints/checkpoint_last.pt"

        def train() -> dict:
            display = TrainingDisplay(training.progress(command), on_terminal())
            return training.train(run, command, display, lambda text: print(f"  {text}", flush=True))

        trained = steps.run(folder, "train", "train", command, [last], train, command)
        if problem := loss_problem(trained):
            raise RecipeError(f"{options.name}: {problem}; see {run}/train.log")

        def merge() -> dict:
            process.run(average, run / "average.log")
            return {}

        steps.run(folder, "average", "average the last epochs", average, [checkpoint], merge, average)
        decoded = steps.run(
            folder,
            "generate",
            f"translate {expected} sentences",
            decode,
            [output, run / "translations.de"],
            lambda: generate(folder, decode, output, expected),
            decode,
        )
        scored = steps.run(folder, "bleu", "score", bleu, [], lambda: score.bleu(bleu, run / "bleu.log")[0], bleu)
        write_record(options, run, command, trained, decoded, scored)
        conclude(options, data, run, command, trained, decoded, scored)


def described(flags: dict[str, str]) -> dict[str, str]:
    """The feature map and the update rule of a training with these flags, for records."""
    if "--fwp-feature-map" not in flags and flags["--arch"] in settings.DESCRIBED:
        return settings.DESCRIBED[flags["--arch"]]
    return {
        "feature_map": flags.get("--fwp-feature-map", "dpfp"),
        "update_rule": flags.get("--fwp-update-rule", "sum"),
    }


def write_record(options, run: Path, command: list[str], trained: dict, decoded: dict, scored: dict) -> None:
    from scripts.results import records

    flags = flags_of(command)
    width = flags.get("--fwp-d-dot")
    record = {
        "table": "quickstart",
        "variant": options.name,
        "command": shlex.join(options.command),
        "train_command": as_run(command),
        "arch": flags["--arch"],
        **described(flags),
        "d_dot": int(width) if width else None,
        "seed": int(flags["--seed"]),
        "threads": int(process.environment()["OMP_NUM_THREADS"]),
        "parameters": trained["parameters"],
        "updates": trained["updates"],
        "valid_loss": trained["valid_loss"],
        "train_seconds": round(trained["seconds"], 1),
        "decode_seconds": round(decoded["seconds"], 1),
        **scored,
        "environment": decoded["environment"],
    }
    write_atomically(run / "record.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    if options.record:
        number = records.append_new(process.ROOT / RECORDS, [record])
        print(f"{number} records appended to {RECORDS}")


def conclude(options, data: Path, run: Path, command: list[str], trained: dict, decoded: dict, scored: dict) -> None:
    parameters = f"{trained['parameters']:,}" if trained["parameters"] else "unknown"
    attention = described(flags_of(command))["feature_map"]
    print(
        f"""
BLEU          {scored["bleu"]:.2f}   (test_2016_flickr{", first 100" if options.smoke else ""}, cased, detokenised)
signature     {scored["signature"]}
time          training {duration(trained["seconds"])}, decoding {duration(decoded["seconds"])}
model         {attention} attention, {parameters} parameters, {trained["updates"]} updates
checkpoints   {run}/checkpoints (decoded: average.pt)
translations  {run}/translations.de (with scores: {commands.generated(run, options.smoke)})
logs          {run}/train.log, {run}/generate.log
"""
    )
    print("\n".join([f"Models trained in {options.out}:", *comparison.side_by_side(options.out, options.smoke), ""]))
    if not options.smoke:
        print(
            f"Next, translate sentences of your own:\n  {commands.interactive(data, commands.averaged(run), command)}"
        )

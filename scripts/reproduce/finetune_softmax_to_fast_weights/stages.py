"""Converts a softmax checkpoint to fast weights and fine-tunes it; measures the model at every stage."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

from scripts.common import packages, process, score, training
from scripts.common.columns import in_columns
from scripts.common.commands import as_run
from scripts.common.folder import Folder, RecipeError, refuse_path, write_atomically
from scripts.common.progress import DecodingDisplay, TrainingDisplay, loss_problem, on_terminal
from scripts.common.steps import Steps
from scripts.data import corpus, multi30k
from scripts.quickstart import arguments as quickstart
from scripts.quickstart import model
from scripts.quickstart.commands import averaged, interactive

from . import commands
from .arguments import RECORDS
from .commands import Recipe

MODELS = ("convert", "transfer", "train", "control")
MEASUREMENTS = ("generate", "bleu", "long")
# The models whose translations to a given length are measured; the others decode like the last.
LONG_STAGES = ("softmax", "finetuned")
_SPEED = re.compile(r"Translated ([\d,]+) sentences .* \(([\d.]+) sentences/s, [\d.]+ tokens/s\)")
_TIME = re.compile(r"translation time: ([\d.]+)")


def softmax_of(options) -> Path:
    """Returns --checkpoint, or the checkpoint of the quickstart's baseline, which is trained if there is none."""
    if options.checkpoint is not None:
        corpus.prepare(Steps(len(corpus.STEPS)), options.out / "data")
        return options.checkpoint
    flags = ["--baseline", "--seed", str(options.seed)]
    flags += [f"--{name}" for name in ("smoke", "cpu", "record") if getattr(options, name)]
    theirs = quickstart.parse(flags)
    theirs.command, theirs.out = ["scripts/quickstart.sh", *flags], options.out
    model.train_and_score(theirs)
    return averaged(options.out / theirs.name)


def _conditions() -> dict:
    """The threads and the environment of a measurement."""
    from scripts.results import records

    return {"threads": int(process.environment()["OMP_NUM_THREADS"]), "environment": records.environment()}


def decode(command: list[str], log: Path, output: Path, expected: int) -> dict:
    """Translates the test set; returns fairseq-generate's speed, without its start, and the process's peak memory."""
    conditions = _conditions()
    shutil.rmtree(output.parent, ignore_errors=True)
    log.unlink(missing_ok=True)
    display = DecodingDisplay(output, expected, on_terminal())
    try:
        used = process.run(command, log, on_tick=display.tick)
    finally:
        display.close()
    found = _SPEED.search(output.read_text(encoding="utf-8") + log.read_text(encoding="utf-8"))
    sentences = int(found[1].replace(",", "")) if found else 0
    if sentences != expected:
        raise RecipeError(f"{output}: expected {expected} translations, actual {sentences}; see {log}")
    return {"sentences_per_second": float(found[2]), "peak_mib": round(used.peak_mib), **conditions}


def decode_long(command: list[str], log: Path, sentences: int, length: int) -> dict:
    """Makes outputs of ``length`` tokens with fairseq-interactive; returns its speed and the process's peak memory."""
    log.unlink(missing_ok=True)
    used = process.run(command, log)
    text = log.read_text(encoding="utf-8")
    lengths = [len(line.split("\t")[2].split()) for line in text.split("\n") if line.startswith("H-")]
    if lengths != [length] * sentences:
        raise RecipeError(f"{log}: expected {sentences} outputs of {length} tokens, actual {lengths}")
    seconds = float(_TIME.search(text)[1])
    return {
        "long_tokens_per_second": round(sentences * length / seconds, 1),
        "long_peak_mib": round(used.peak_mib),
    }


def convert(recipe: Recipe) -> dict:
    """Runs fwp convert; returns the attention and the model's training flags, which it prints."""
    log = recipe.converted.parent / "convert.log"
    log.unlink(missing_ok=True)
    process.run(commands.convert(recipe), log)
    text = log.read_text(encoding="utf-8")
    attention = re.search(r"^attention: \[.*\] -> \[(.*)\]$", text, re.MULTILINE)
    return {
        "attention": attention[1] if attention else "softmax",
        "train": shlex.split(text.strip().splitlines()[-1]),
    }


def _content(checkpoint: Path) -> str:
    """Identifies a checkpoint by name, size and time, because one of the same name may have other content."""
    status = checkpoint.stat()
    return f"{checkpoint}, {status.st_size} bytes of {status.st_mtime_ns}"


def steps_of(recipe: Recipe) -> int:
    models = len(recipe.stages) - 1
    return models + len(recipe.stages) * (len(MEASUREMENTS) - 1) + len(LONG_STAGES)


def measure(recipe: Recipe, steps: Steps, stage: str, checkpoint: Path) -> dict:
    folder = Folder(recipe.folder(stage), MEASUREMENTS)
    model = _content(checkpoint)

    def step(name: str, title: str, command: list[str], outputs: list[Path], work) -> dict:
        return steps.run(folder, name, f"{stage}: {title}", [model, command], outputs, lambda: work(command), command)

    expected = corpus.SMOKE_SENTENCES if recipe.smoke else multi30k.SPLITS["test_2016_flickr"]
    output = recipe.generated(stage)
    found = step(
        *("generate", f"translate {expected} sentences", commands.generate(recipe, stage, checkpoint), [output]),
        lambda command: decode(command, folder.path / "generate.log", output, expected),
    )
    found |= step(
        *("bleu", "score", commands.bleu(recipe, stage), []),
        lambda command: score.bleu(command, folder.path / "bleu.log")[0],
    )
    found |= dict.fromkeys(("long_tokens_per_second", "long_peak_mib"))
    if stage in LONG_STAGES:
        number, length = commands.LONG_SENTENCES, recipe.long
        found |= step(
            *("long", f"{number} outputs of {length} tokens", commands.generate_long(recipe, checkpoint), []),
            lambda command: decode_long(command, folder.path / "long.log", number, length),
        )
    if recipe.device != ("--cpu",):  # the memory of the process says nothing about that of a GPU
        found |= {"peak_mib": None, "long_peak_mib": None}
    return found


def run_stages(options, recipe: Recipe) -> list[dict]:
    """Does every unfinished step; returns one record per stage."""
    folder = Folder(recipe.path, MODELS)
    steps = Steps(steps_of(recipe))
    with folder.locked():
        folder.claim(
            {
                "checkpoint": _content(recipe.softmax),
                "conversion": " ".join(recipe.conversion),
                "transfer": recipe.transfer,
                "updates": recipe.updates,
                "lr": recipe.lr,
                "seed": recipe.seed,
                "smoke": recipe.smoke,
            }
        )
        sources = (recipe.data / "raw/smoke.en").read_text(encoding="utf-8").split("\n")[: commands.LONG_SENTENCES]
        write_atomically(recipe.sources, "".join(f"{line}\n" for line in sources))
        found = {"softmax": measure(recipe, steps, "softmax", recipe.softmax)}

        recipe.converted.parent.mkdir(exist_ok=True)
        command = commands.convert(recipe)
        converted = steps.run(
            *(folder, "convert", "convert to fast weights", command, [recipe.converted]),
            lambda: convert(recipe),
            command,
        )
        found["converted"] = measure(recipe, steps, "converted", recipe.converted)

        def train(name: str, stage: str, title: str, command: list[str], checkpoint: Path) -> None:
            """Trains the model of a stage, and measures it."""
            checkpoint.parent.parent.mkdir(exist_ok=True)

            def work() -> dict:
                display = TrainingDisplay(training.progress(command), on_terminal())
                return training.train(
                    recipe.folder(stage), command, display, lambda text: print(f"  {text}", flush=True)
                )

            trained = steps.run(folder, name, title, command, [checkpoint], work, command)
            if recipe.smoke and (problem := loss_problem(trained)):
                raise RecipeError(f"smoke: {problem}; see {recipe.folder(stage)}/train.log")
            found[stage] = measure(recipe, steps, stage, checkpoint) | {
                "updates": trained["updates"],
                "train_seconds": round(trained["seconds"], 1),
                "train_command": as_run(command),
            }

        if recipe.transfer:
            command = commands.transfer(recipe, converted["train"])
            title = f"train the feature maps for {recipe.transfer} updates"
            train("transfer", "transferred", title, command, recipe.transferred)
        command = commands.train(recipe, converted["train"])
        train("train", "finetuned", f"fine-tune for {recipe.updates} updates", command, recipe.finetuned)
        if recipe.control:
            command = commands.control(recipe, converted["train"])
            title = f"train the softmax model for {recipe.transfer + recipe.updates} updates"
            train("control", "continued", title, command, recipe.continued)

        records = []
        for stage, result in found.items():
            record = {"updates": 0, "train_seconds": 0.0, "train_command": None} | result
            record |= {
                "table": options.table,
                "stage": stage,
                "attention": "softmax" if stage in ("softmax", "continued") else converted["attention"],
                "conversion": converted["attention"],
                "transfer": recipe.transfer,
                "lr": recipe.lr,
                "seed": recipe.seed,
                "long_length": recipe.long,
                "command": shlex.join(options.command),
            }
            text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
            write_atomically(recipe.folder(stage) / "record.json", text)
            records.append(record)
    return records


def conclude(recipe: Recipe, found: list[dict]) -> None:
    from fwp_fairseq.tables.table import grid
    from scripts.results.tables import TABLES

    expected = [{"stage": stage} for stage in recipe.stages]
    table = grid(replace(TABLES["finetune"], expected=expected, select={}), "finetune", found)
    lines = [table.headings, *([str(cell) for cell in row] for row in table.rows)]
    print("", *in_columns(lines), sep="\n")
    print(f"\n{table.note}\n\ncheckpoint    {recipe.finetuned}\nlogs          {recipe.path}/*/*.log")
    if not recipe.smoke:
        line = interactive(recipe.data, recipe.finetuned, list(recipe.device))
        print(f"\nNext, translate sentences of your own:\n  {line}")


def run(options) -> None:
    """Does every unfinished step, and prints the table of all stages."""
    packages.require()
    from scripts.results import records

    print(f"+ {shlex.join(options.command)}", flush=True)
    if options.record:
        records.require_commit()
    if options.checkpoint is not None:
        refuse_path(options.checkpoint)
        if not options.checkpoint.is_file():
            raise RecipeError(f"--checkpoint {options.checkpoint}: no such file")
    device = model.device(options.cpu)
    recipe = Recipe(
        data=options.out / "data",
        path=options.out / options.name,
        softmax=softmax_of(options),
        conversion=tuple(options.conversion),
        transfer=options.transfer,
        updates=options.updates,
        lr=options.lr,
        control=options.control,
        seed=options.seed,
        smoke=options.smoke,
        device=tuple(device),
    )
    found = run_stages(options, recipe)
    conclude(recipe, found)
    if options.record:
        number = records.append_new(process.ROOT / RECORDS, found)
        print(f"{number} records appended to {RECORDS}")

"""Converts trained softmax models to fast weights and fine-tunes them; measures the model at every stage."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

from fwp_fairseq.files import refuse_interpreted, write_atomically
from scripts.common import program, score
from scripts.common.arguments import Parser
from scripts.common.commands import words_of
from scripts.common.errors import RecipeError
from scripts.common.folder import content
from scripts.common.runner.call import Call
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.work import Work
from scripts.data import corpus, multi30k

from . import commands
from .commands import ConversionRun, Gpus
from .rows import LR, PRESETS

MEASUREMENTS = ("generate", "bleu", "long")
# The models whose translations to a given length are measured; the others decode like the last.
LONG_STAGES = ("softmax", "finetuned")
_SPEED = re.compile(r"Translated ([\d,]+) sentences .* \(([\d.]+) sentences/s, [\d.]+ tokens/s\)")
_TIME = re.compile(r"translation time: ([\d.]+)")


class Conversion(Experiment):
    name, file, presets = "conversion", "finetune.jsonl", PRESETS
    run_type = ConversionRun
    steps = ("convert", "transfer", "train", "control")
    own_flags = None
    table_of_others: str | None = "finetune"  # of a checkpoint of the user's; None if it is the preset's
    description = """\
Turns a trained softmax model into one whose decoder keeps a state of constant size: converts its checkpoint to fast
weights (fwp convert) and fine-tunes it for a short time; some rows train the feature maps alone before, until they
attend as softmax did. Measures BLEU on Multi30k test_2016_flickr at each of these stages, and the speed and memory of
decoding before and after, on the test set and with long outputs.

  --preset quickstart --rows window           the quick start's model and conversion
  --preset multi30k --seeds 1 2 3             all rows, of the models of bleu_vs_d_dot
"""

    def add_options(self, parser: Parser) -> None:
        parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="the model to convert, {seed} for the seed")

    def check_options(self, parser: Parser, call: Call) -> None:
        if call.checkpoint is not None:
            if call.record:
                parser.error("--record: records do not tell the model of a --checkpoint from the preset's")
            table = self.table_of_others or call.preset.table
            call.preset = replace(call.preset, model=str(program.from_root(call.checkpoint)), made_by="", table=table)

    def prepare(self, call: Call) -> None:
        for seed in call.seeds:
            checkpoint = Path(call.preset.model.replace("{seed}", str(seed)))
            refuse_interpreted(checkpoint)
            if not checkpoint.is_file() and not call.prepare:
                made_by = call.preset.made_by.replace("{seed}", str(seed))
                raise RecipeError(f"{checkpoint}: no such file{made_by and f'; {made_by} makes it'}")
        self.prepare_data(call)

    def prepare_data(self, call: Call) -> None:
        """Prepares the corpus in ``call.data``."""
        corpus.prepare(call.data)

    def configuration(self, run: ConversionRun, devices: Gpus) -> dict:
        return {
            "checkpoint": content(run.model),
            "conversion": words_of(run.row.flags),
            "transfer": run.row.transfer,
            "updates": run.updates,
            "lr": LR,
        }

    def results(self, run: ConversionRun, devices: Gpus, work: Work) -> list[dict]:
        stages = {"softmax": self.measure(run, devices, work, "softmax")}

        run.folder("converted").mkdir(exist_ok=True)
        command, outputs = commands.convert(run), [run.checkpoint("converted"), run.flags_file]
        work.run_tool("convert", "convert", command, outputs, run.folder("converted") / "convert.log")
        converted = json.loads(run.flags_file.read_text(encoding="utf-8"))
        stages["converted"] = self.measure(run, devices, work, "converted")

        trainings = {
            "transferred": ("transfer", "train the feature maps", commands.transfer),
            "finetuned": ("train", "fine-tune", commands.train),
            "continued": ("control", "train the softmax model on", commands.control),
        }
        for stage in run.stages[2:]:
            step, title, words = trainings[stage]
            run.folder(stage).mkdir(exist_ok=True)
            command = words(run, devices, converted["flags"])
            trained = work.train(command, run.checkpoint(stage), step, title, run.folder(stage))
            stages[stage] = self.measure(run, devices, work, stage) | {
                "updates": trained["updates"],
                "valid_loss": trained["valid_loss"],
                "train_seconds": round(trained["seconds"], 1),
                "train_command": trained["command"],
            }
        return [_record(run, work, stage, converted["attention"], result) for stage, result in stages.items()]

    def measure(self, run: ConversionRun, devices: Gpus, work: Work, stage: str) -> dict:
        """Decodes and scores the model of a stage, unless that is done; returns what the record says of it."""
        sources = (run.data / "raw/smoke.en").read_text(encoding="utf-8").split("\n")[: commands.LONG_SENTENCES]
        write_atomically(run.sources, "".join(f"{line}\n" for line in sources))
        steps, model = work.part(run.folder(stage), MEASUREMENTS), content(run.checkpoint(stage))
        expected = corpus.SMOKE_SENTENCES if run.preset.smoke else multi30k.SPLITS["test_2016_flickr"]
        output = run.generated(stage)

        def decode() -> dict:
            return _decode(work, generate, steps.path / "generate.log", output, expected) | work.conditions

        def scored() -> dict:
            return score.bleu(bleu, steps.path / "bleu.log", **work.options)[0]

        def decode_long() -> dict:
            return _decode_long(work, long, steps.path / "long.log", length)

        generate, bleu = commands.generate(run, devices, stage), commands.bleu(run, stage)
        long, length = commands.generate_long(run, devices, stage), run.preset.long
        measured = dict(steps.run("generate", f"{stage}: translate", [model, generate], [output], decode, generate))
        measured |= steps.run("bleu", f"{stage}: score", [model, bleu], [], scored, bleu)
        measured |= dict.fromkeys(("long_tokens_per_second", "long_peak_mib")) | {"long_length": length}
        if stage in LONG_STAGES:
            title = f"{stage}: {commands.LONG_SENTENCES} outputs of {length} tokens"
            measured |= steps.run("long", title, [model, long], [], decode_long, long)
        if devices:  # the memory of the process says nothing about that of a GPU
            measured |= {"peak_mib": None, "long_peak_mib": None}
        return measured

    def summary(self, run: ConversionRun, results: list[dict]) -> list[str]:
        lines = []
        for record in results:
            speed, peak = record["long_tokens_per_second"], record["long_peak_mib"]
            long = f"; outputs of {run.preset.long} tokens: {speed:.0f} tokens/s" if speed else ""
            lines.append(
                f"{record['stage']}: BLEU {record['bleu']:.2f}, {record['sentences_per_second']:.1f} sentences/s"
                + (f", {record['peak_mib']} MiB" if record["peak_mib"] else "")
                + long
                + (f", {peak} MiB" if peak else "")
            )
        return [*lines, results[0]["signature"], f"checkpoint: {run.checkpoint('finetuned')}"]


def _record(run: ConversionRun, work: Work, stage: str, attention: str, result: dict) -> dict:
    return {
        **{"updates": 0, "train_seconds": 0.0, "train_command": None},
        **result,
        "table": run.preset.table,
        "preset": run.preset.name,
        "row": run.row.name,
        "stage": stage,
        "attention": "softmax" if stage in ("softmax", "continued") else attention,
        "conversion": attention,
        "transfer": run.row.transfer,
        "planned": run.updates,
        "lr": LR,
        "seed": run.seed,
        "command": shlex.join(work.command),
    }


def _decode(work: Work, command: list[str], log: Path, output: Path, expected: int) -> dict:
    """Translates the test set; returns fairseq-generate's speed, without its start, and the process's peak memory."""
    shutil.rmtree(output.parent, ignore_errors=True)
    used = work.tool(command, log)
    match = _SPEED.search(output.read_text(encoding="utf-8") + log.read_text(encoding="utf-8"))
    sentences = int(match[1].replace(",", "")) if match else 0
    if sentences != expected:
        raise RecipeError(f"{output}: expected {expected} translations, actual {sentences}; see {log}")
    return {"sentences_per_second": float(match[2]), "peak_mib": round(used.peak_mib)}


def _decode_long(work: Work, command: list[str], log: Path, length: int) -> dict:
    """Makes outputs of ``length`` tokens with fairseq-interactive; returns its speed and the process's peak memory."""
    used = work.tool(command, log)
    text, sentences = log.read_text(encoding="utf-8"), commands.LONG_SENTENCES
    lengths = [len(line.split("\t")[2].split()) for line in text.split("\n") if line.startswith("H-")]
    if lengths != [length] * sentences:
        raise RecipeError(f"{log}: expected {sentences} outputs of {length} tokens, actual {lengths}")
    speed = sentences * length / float(_TIME.search(text)[1])
    return {"long_tokens_per_second": round(speed, 1), "long_peak_mib": round(used.peak_mib)}


EXPERIMENT = Conversion()

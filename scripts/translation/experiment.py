"""Trains, decodes and scores translation models."""

import shutil

from fwp_fairseq.cli.paragraphs import read_lines
from fwp_fairseq.cli.translations import translations
from fwp_fairseq.text import duration
from scripts.common import bootstrap, score
from scripts.common.runner.call import Call
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.work import Work
from scripts.data import corpus

from . import commands
from .commands import Gpus, TranslationRun


class Translation(Experiment):
    """An experiment whose runs are translation models; its presets are `preset.TranslationPreset`."""

    run_type = TranslationRun
    steps = ("train", "average", "generate", "bleu")
    own_flags = (*Experiment.own_flags, "--update-freq")

    def commands(self, run: TranslationRun, devices: Gpus) -> list[list[str]]:
        return commands.all_commands(run, devices)

    def prepare(self, call: Call) -> None:
        corpus.prepare(call.data)

    def configuration(self, run: TranslationRun, devices: Gpus) -> dict:
        return commands.configuration(run, devices)

    def results(self, run: TranslationRun, devices: Gpus, work: Work) -> list[dict]:
        decode, bleu, steps = commands.generate(run, devices), commands.bleu(run), work.folder

        def generate() -> dict:
            shutil.rmtree(run.generated.parent, ignore_errors=True)
            used = work.tool(decode, run.path / "generate.log")
            return {"seconds": used.seconds, "peak_mib": None if devices else used.peak_mib}

        def scores() -> dict:
            return {"scores": score.bleu(bleu, run.path / "bleu.log", **work.options)}

        last = run.path / "checkpoints/checkpoint_last.pt"
        trained = work.train(commands.train(run, devices), last)
        if run.preset.average is not None:
            average = commands.average(run)
            work.run_tool("average", "average the last epochs", average, [run.checkpoint], run.path / "average.log")
        decoded = steps.run("generate", "translate the test set", decode, [run.generated], generate, decode)
        first, *second = steps.run("bleu", "score", bleu, [], scores, bleu)["scores"]
        split = second[0] if second else {}
        record = work.record(
            run.preset.table,
            trained,
            valid_bleu=trained["valid_bleu"],
            **first,
            bleu_compound_split=split.get("bleu"),
            compound_split_signature=split.get("signature"),
            decode_seconds=round(decoded["seconds"], 1),
            decode_peak_mib=decoded["peak_mib"] and round(decoded["peak_mib"]),
        )
        return [record]

    def compared(self, baseline: TranslationRun, run: TranslationRun) -> dict[str, dict]:
        made = [translations(str(each.finished(each.generated, self.name))) for each in (baseline, run)]
        scores = bootstrap.compare(*made, read_lines(run.reference))
        return {run.preset.test: {"table": "paired_bootstrap", **scores}}

    def summary(self, run: TranslationRun, results: list[dict]) -> list[str]:
        (record,) = results
        split = record["bleu_compound_split"]
        more = "" if split is None else f", compounds split {split:.2f}"
        seconds = f"training {duration(record['train_seconds'])}, decoding {duration(record['decode_seconds'])}"
        signatures = filter(None, (record["signature"], record["compound_split_signature"]))
        return [f"BLEU {record['bleu']:.2f}{more} ({seconds})", *signatures]

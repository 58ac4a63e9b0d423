"""Converts the decoder of a softmax model of documents to Hedgehog; scores every stage on the test documents."""

from scripts.common.commands import device
from scripts.common.runner.call import Call
from scripts.common.runner.work import Work
from scripts.experiments.conversion.commands import ConversionRun, Gpus
from scripts.experiments.conversion.recipe import Conversion
from scripts.experiments.documents import corpus, evaluation

from .rows import PRESETS


class DocumentsConversion(Conversion):
    name, file, presets = "documents_conversion", "documents_conversion.jsonl", PRESETS
    table_of_others = None
    description = """\
Converts the decoder's self-attention of a softmax model that the experiment on documents has trained to Hedgehog, with
and without a window that is read by a softmax, fine-tunes the model for a short time, and scores it on test documents.

  --preset tenth --seeds 1 2 3 --checkpoint softmax.pt
"""

    def prepare_data(self, call: Call) -> None:
        corpus.prepare(call.preset.documents.corpus, call.data)
        corpus.require_measured(call)

    def measure(self, run: ConversionRun, devices: Gpus, work: Work, stage: str) -> dict:
        preset, checkpoint = run.preset, run.checkpoint(stage)
        translated, seconds = evaluation.translate(
            run, checkpoint, preset.words, preset.one_of, device(devices), work.say, work.options,
            where=run.folder(stage),
        )  # fmt: skip
        scores = evaluation.scores(translated)
        return {
            "bleu": scores["buckets"]["all"]["bleu"],
            **scores,
            "corpus": evaluation.corpus_of(run),
            "words": preset.words,
            "one_of": preset.one_of,
            "decode_seconds": round(seconds, 1),
            **work.conditions,
        }

    def summary(self, run: ConversionRun, results: list[dict]) -> list[str]:
        return [f"{record['stage']}: BLEU {record['bleu']:.2f}" for record in results]


EXPERIMENT = DocumentsConversion()

"""Documents: which attention translates long sources, trained on windows of consecutive paragraphs."""

from __future__ import annotations

import argparse

from scripts.common.commands import flags_of
from scripts.common.runner import run as runner
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.run import Run, Work

from . import corpus, evaluation, training
from .presets import PRESETS


def device(gpus: tuple[int, ...]) -> dict:
    return {} if gpus else {"--cpu": True}


class Documents(Experiment):
    name, file, presets = "documents", "documents.jsonl", PRESETS
    description = """\
Translates documents: trains models on windows of consecutive paragraphs, for a number of updates over which the
learning rate falls to zero, and scores them by length of the source.

  --preset long --rows softmax hybrid --jobs 2
"""
    saved = "500 updates"

    def prepare(self, given: argparse.Namespace) -> None:
        corpus.prepare(given.preset.corpus, given.data)

    def preparation(self, given: argparse.Namespace) -> list[list[str]]:
        return [corpus.preprocess(given.preset.corpus, given.data)]

    def commands(self, run: Run, devices) -> list[list[str]]:
        return [training.train_command(run, device(devices))]

    def configuration(self, run: Run, devices) -> dict:
        return runner.settings(flags_of(training.train_command(run, device(devices))), ())

    def results(self, run: Run, devices, work: Work) -> list[dict]:
        trained = training.train(run, work, training.train_command(run, device(devices)))
        return evaluation.evaluate(run, work, trained, device(devices))

    def compared(self, baseline: Run, run: Run) -> dict[str, dict]:
        return evaluation.compared(baseline, run)

    def summary(self, run: Run, found: list[dict]) -> list[str]:
        return [line for record in found for line in evaluation.lines_about(record)]


EXPERIMENT = Documents()
main = EXPERIMENT.main

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
Translates documents: trains models on windows of consecutive paragraphs until their validation loss stands still, and
scores them by length of the source. evaluate.py scores a training that goes on.

  --preset documents --rows softmax hybrid --jobs 2
"""
    saved = "500 updates"

    def prepare(self, given: argparse.Namespace) -> None:
        corpus.prepare(given.preset.corpus, given.data)

    def preparation(self, given: argparse.Namespace) -> list[list[str]]:
        return [corpus.preprocess(given.preset.corpus, given.data)]

    def commands(self, run: Run, devices) -> list[list[str]]:
        return [training.train_command(run, device(devices))]

    def configuration(self, run: Run, devices) -> dict:
        return runner.settings(flags_of(training.train_command(run, device(devices))), ("--max-update",))

    def results(self, run: Run, devices, work: Work) -> list[dict]:
        training.train(run, work, training.train_command(run, device(devices)))
        command = list(work.command)
        lengths = run.preset.corpus.test_words
        return [evaluation.evaluate(run, "best", lengths, 1, command, device(devices), work.say, **work.options)]

    def summary(self, run: Run, found: list[dict]) -> list[str]:
        return evaluation.lines_about(*found)

    def key(self, record: dict) -> tuple:
        return record["preset"], record["row"], record["seed"], record["ended"]

    def key_of(self, run: Run) -> tuple:
        return run.preset.name, run.row.name, run.seed, True


EXPERIMENT = Documents()
main = EXPERIMENT.main

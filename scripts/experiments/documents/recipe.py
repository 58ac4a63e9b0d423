"""Documents: which attention translates long sources, trained on passages of consecutive paragraphs."""

from collections.abc import Callable
from pathlib import Path

from fwp_fairseq.cli.commands import say
from fwp_fairseq.cli.processes import environment
from scripts.common import program
from scripts.common.arguments import Parser
from scripts.common.commands import device, flags_of
from scripts.common.runner.call import Call
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.run import Run, settings
from scripts.common.runner.work import Work

from . import corpus, evaluation, training
from .presets import PRESETS

_RESULTS = Path("benchmarks/results")


class Documents(Experiment):
    name, file, presets = "documents", "documents.jsonl", PRESETS
    description = """\
Translates documents: trains models on passages of consecutive paragraphs, for a number of updates over which the
learning rate falls to zero, and scores them by length of the source.

  --preset long --rows softmax hybrid --jobs 2
"""
    goes_on = "a training goes on from its last multiple of 500 updates"

    def add_options(self, parser: Parser) -> None:
        what = "only translate the documents in DIR, in files as in FWP_DATA/documents, with finished models"
        parser.add_argument("--test-on", type=Path, metavar="DIR", help=what)
        what = "only translate again with finished models, reading N positions of the source in each step"
        parser.add_argument("--source-window", type=int, nargs="+", metavar="N", help=what)

    def check_options(self, parser: Parser, call: Call) -> None:
        parser.require_least("--source-window", min(call.source_window or [1]), 1)

    def on_finished(self, call: Call) -> tuple[Path, Callable[[Run], tuple]] | None:
        if not call.test_on and not call.source_window:
            return super().on_finished(call)
        corpus.require_measured(call)
        for run in self.runs(call):
            run.finished(run.path / "done-train.json", self.name)
        others = call.test_on and corpus.others(call.preset.corpus, call.data, program.from_root(call.test_on))
        devices = self.devices(call)[0]
        how = device(devices, call.preset.fp16), say, {"variables": environment() | self.variables(devices)}

        def translate(run: Run) -> tuple[list[str], list[dict]]:
            if others:
                results = [evaluation.on_others(run, others, *how)]
            else:
                results = [evaluation.with_window(run, size, *how) for size in call.source_window]
            return self.summary(run, results), results

        return _RESULTS / f"documents_{'others' if others else 'source_window'}.jsonl", translate

    def prepare(self, call: Call) -> None:
        corpus.prepare(call.preset.corpus, call.data)
        corpus.require_measured(call)

    def preparation(self, call: Call) -> list[list[str]]:
        return [corpus.preprocess(call.preset.corpus, call.data)]

    def commands(self, run: Run, devices) -> list[list[str]]:
        return [training.train_command(run, device(devices, run.preset.fp16))]

    def configuration(self, run: Run, devices) -> dict:
        flags = flags_of(training.train_command(run, device(devices, run.preset.fp16)))
        return settings(flags, ()) | {"corpus": corpus.digest(run.data)}

    def results(self, run: Run, devices, work: Work) -> list[dict]:
        trained = training.train(run, work, training.train_command(run, device(devices, run.preset.fp16)))
        return [evaluation.evaluate(run, work, trained, device(devices, run.preset.fp16))]

    def compared(self, baseline: Run, run: Run) -> dict[str, dict]:
        return evaluation.compared(baseline, run)

    def summary(self, run: Run, results: list[dict]) -> list[str]:
        return [line for record in results for line in evaluation.lines_about(record)]


EXPERIMENT = Documents()

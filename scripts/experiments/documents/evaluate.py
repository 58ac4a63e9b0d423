"""Evaluates the last checkpoint of trainings that go on, on the CPU.

  python -m scripts.experiments.documents.evaluate --rows softmax hybrid --record

Their records say that the trainings have not ended.
"""

from __future__ import annotations

import sys

from scripts.common import program, records
from scripts.common.arguments import Parser
from scripts.common.runner.options import finished
from scripts.common.text import say

from . import evaluation
from .recipe import EXPERIMENT


def main(argv: list[str]) -> int:
    parser = Parser("python -m scripts.experiments.documents.evaluate", __doc__, "", "--rows ROW [ROW ...] [OPTIONS]")
    parser.add_argument("--words", nargs="*", type=int, metavar="N", help="lengths of test windows (default: all)")
    parser.add_argument("--one-of", type=int, default=1, metavar="N", help="only every Nth window (default: 1)")
    given = finished(parser, argv, EXPERIMENT)
    lengths = given.preset.corpus.test_words
    words = lengths if given.words is None else given.words
    if not set(words) <= set(lengths):
        parser.error(f"--words {' '.join(map(str, words))}: expected some of {', '.join(map(str, lengths))}")
    parser.require_least("--one-of", given.one_of, 1)
    command = ["python", "-m", "scripts.experiments.documents.evaluate", *argv]

    def work() -> None:
        if given.record:
            records.require_commit()
        for run in given.runs:
            record = evaluation.evaluate(run, "last", words, given.one_of, command, {"--cpu": True}, say)
            for line in evaluation.lines_about(record):
                say(f"{run.name}: {line}")
            if given.record:
                records.append(EXPERIMENT.records, record)

    return program.run(work, "goes on")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Evaluates the last checkpoint of trainings that go on, on the CPU.

  python -m scripts.experiments.documents.evaluate --rows softmax hybrid --record

Their records say that the trainings have not ended.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from scripts.common import program, records
from scripts.common.arguments import Parser
from scripts.common.runner.run import Run
from scripts.common.text import say

from . import evaluation
from .recipe import EXPERIMENT


def main(argv: list[str]) -> int:
    parser = Parser("python -m scripts.experiments.documents.evaluate", __doc__, "", "--rows ROW [ROW ...] [OPTIONS]")
    add = parser.add_argument
    add("--preset", default="documents", choices=list(EXPERIMENT.presets), help="(default: %(default)s)")
    add("--rows", required=True, nargs="+", metavar="ROW", help="rows to evaluate")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="(default: 1)")
    add("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/documents/PRESET)")
    add("--words", nargs="*", type=int, metavar="N", help="lengths of test windows, or none (default: all)")
    add("--one-of", type=int, default=1, metavar="N", help="translate every Nth window only (default: 1)")
    add("--record", action="store_true", help=f"append to {EXPERIMENT.records}; needs a checkout without local changes")
    given = parser.parse_args(argv)
    given.preset = EXPERIMENT.presets[given.preset]
    rows = {row.name: row for row in given.preset.rows}
    for name in given.rows:
        if name not in rows:
            parser.error(f"--rows {name}: expected some of {', '.join(rows)}")
    lengths = given.preset.corpus.test_words
    if given.words is None:
        given.words = lengths
    if not set(given.words) <= set(lengths):
        parser.error(f"--words {' '.join(map(str, given.words))}: expected some of {', '.join(map(str, lengths))}")
    parser.require_least("--one-of", given.one_of, 1)
    tests = evaluation.Tests(tuple(given.words), given.one_of)
    out = program.from_root(given.out) or EXPERIMENT.folder_of(given)
    command = ["python", "-m", "scripts.experiments.documents.evaluate", *argv]

    def work() -> None:
        if given.record:
            records.require_commit()
        for name, seed in product(given.rows, given.seeds):
            run = Run(given.preset, rows[name], seed, out / f"{name}-seed{seed}", out / "data")
            record = evaluation.evaluate(run, "last", tests, command, {"--cpu": True}, say)
            for line in evaluation.lines_about(record):
                say(f"{run.name}: {line}")
            if given.record:
                records.append(EXPERIMENT.records, record)

    return program.run(work, "goes on")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

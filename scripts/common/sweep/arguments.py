"""The command line that the recipes share which run the rows of a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..arguments import Parser

_GO_ON = """\
After an interruption the same command continues: finished steps are kept, recorded rows are skipped, and a training
goes on from its last {}.
"""


def parser(description: str, presets: dict, out: Path, records: Path, saved: str) -> Parser:
    """Returns the parser of a recipe's run.py, with the options that every recipe has.

    ``out`` is the folder that holds the runs of all presets; ``records`` is the file of the project's records;
    ``saved`` is what of an interrupted training is saved last.
    """
    description = f"{description}\n{_GO_ON.format(saved)}"
    result = Parser("run.py", description, "FAIRSEQ-TRAIN-FLAGS", usage="--preset PRESET [OPTIONS]")
    result.set_defaults(prepare=False)  # a recipe may add --prepare
    add = result.add_argument
    add("--preset", required=True, choices=list(presets), help="see README.md for the cost of each")
    add("--rows", nargs="+", metavar="ROW", help="rows to run (default: all; --list shows them)")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="seeds to run (default: 1)")
    add("--jobs", type=int, default=1, metavar="N", help="how many runs go on at a time (default: 1)")
    add("--gpus", metavar="0,1,...", help="GPUs to use (default: those that torch sees)")
    add("--cpu", action="store_true", help="use no GPU, even if there is one")
    add("--out", type=Path, metavar="DIR", help=f"folder of the runs and their records (default: {out}/PRESET)")
    add("--data", type=Path, metavar="DIR", help="folder of the prepared data (default: data in --out)")
    add(
        "--record",
        action="store_true",
        help=f"also append to {records}, and skip the rows that it has; needs a checkout without local changes",
    )
    add(
        "--list",
        action="store_true",
        help=f"only list the rows: which ones are done in --out, and which ones {records.parent} has",
    )
    add("--dry-run", action="store_true", help="only print the commands")
    return result


def parse(parser: Parser, argv: list[str], presets: dict) -> argparse.Namespace:
    """Parses ``argv`` up to `--`; what follows is for fairseq-train and becomes ``more``.

    ``preset`` and ``gpus`` are replaced by what their values mean. Exits with an error for values that are wrong or
    contradict each other.
    """
    options, more = parser.split(argv)
    options.more = tuple(more)
    preset = options.preset = presets[options.preset]
    names = [row.name for row in preset.rows]
    for name in options.rows or ():
        if name not in names:
            parser.error(f"--rows {name}: expected some of {', '.join(names)}")
    for flag, values in (("--rows", options.rows or ()), ("--seeds", options.seeds)):
        if len(set(values)) < len(values):
            parser.error(f"{flag} {' '.join(map(str, values))}: expected each value at most once")
    parser.require_least("--jobs", options.jobs, 1)
    parser.require_least("--seeds", min(options.seeds), 0)
    if options.gpus is not None:
        try:
            options.gpus = tuple(int(number) for number in options.gpus.split(","))
        except ValueError:
            parser.error(f"--gpus {options.gpus}: expected numbers separated by commas")
        if options.cpu:
            parser.error("--gpus and --cpu contradict each other")
    if options.record and (preset.name == "smoke" or options.more):
        parser.error("--record: a smoke run, or a run with flags after --, is not a result for this table")
    return options

"""The command line of run.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from .presets import PRESETS
from .train_and_evaluate import FILE

HERE = Path("scripts/reproduce/wikitext103_lm")
OUT = Path("runs/wikitext103_lm")
RECORDS = Path("benchmarks/results") / FILE

DESCRIPTION = """\
Language models with fast weights: prepares the text, trains, evaluates and records the rows of Tables 2 to 5 of Schlag
et al. 2021, at four scales.

  run.py --preset tinyshakespeare --jobs 2          all rows in characters, two at a time; minutes a row
  run.py --preset wikitext103 --gpus 0,1            the paper's own experiment; days a row
  run.py --preset tinyshakespeare --list            what is done, here and in the project's records

The same command continues what was interrupted: finished steps are kept, recorded rows are skipped, a training goes on
from its last checkpoint.
"""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py",
        usage="%(prog)s --preset PRESET [OPTIONS] [-- FAIRSEQ-TRAIN-FLAGS]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--preset", required=True, choices=list(PRESETS), help="see README.md for the cost of each")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="default: all, see --list")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N", help="default: 1")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument("--gpus", metavar="0,1,...", help="default: those that torch sees")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU that is there")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {OUT}/PRESET")
    parser.add_argument("--data", type=Path, metavar="DIR", help="prepared text (default: OUT/data)")
    parser.add_argument(
        "--prepare", action="store_true", help="only fetch and prepare the text, e.g. where there is a network"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"also append to {RECORDS}, and skip the rows it has; refused when the working tree has changes",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help=f"only list the rows: what is done in --out, and which of them {RECORDS.parent} has",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    split = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:split])
    options.more = tuple(argv[split + 1 :])
    _refuse_nonsense(parser, options)
    return options


def _refuse_nonsense(parser: argparse.ArgumentParser, options) -> None:
    preset = options.preset = PRESETS[options.preset]
    names = [row.name for row in preset.rows]
    for name in options.rows or ():
        if name not in names:
            parser.error(f"--rows {name}: expected some of {', '.join(names)}")
    for flag, values in (("--rows", options.rows or ()), ("--seeds", options.seeds)):
        if len(set(values)) < len(values):
            parser.error(f"{flag} {' '.join(map(str, values))}: each at most once")
    for flag, value, least in (("--jobs", options.jobs, 1), ("--seeds", min(options.seeds), 0)):
        if value < least:
            parser.error(f"{flag} {value}: expected {least} or more")
    if options.gpus is not None:
        try:
            options.gpus = tuple(int(number) for number in options.gpus.split(","))
        except ValueError:
            parser.error(f"--gpus {options.gpus}: expected numbers with commas between them")
        if options.cpu:
            parser.error("--gpus and --cpu contradict each other")
    if options.record and (preset.name == "smoke" or options.more):
        parser.error("--record: a smoke run, or one with flags after --, is no result of these tables")

"""Parses the command line of run.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from .presets import PRESETS, WMT14
from .train_and_score import FILE

HERE = Path("scripts/reproduce/wmt14_bleu_vs_d_dot")
OUT = Path("runs/wmt14_bleu_vs_d_dot")
RECORDS = Path("benchmarks/results") / FILE

DESCRIPTION = """\
BLEU over d_dot: trains, decodes, scores and records the rows of Schlag et al. 2021, Table 1, at one of three scales.

  run.py --preset multi30k --jobs 2                 all rows, two at a time; each takes minutes
  run.py --preset wmt14 --gpus 0,1,2,3,4,5,6,7      the paper's own experiment (run prepare.sh first)
  run.py --preset multi30k --list                   what is done in --out, and what this project has recorded

After an interruption the same command continues: finished steps are kept, recorded rows are skipped, and a training
goes on from its last epoch.
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
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="rows to run (default: all; --list shows them)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N", help="seeds to run (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many runs go on at a time (default: 1)")
    parser.add_argument("--gpus", metavar="0,1,...", help="GPUs to use (default: those that torch sees)")
    parser.add_argument("--cpu", action="store_true", help="use no GPU, even if there is one")
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="command that starts fairseq-train on several machines, with --world-size; see README.md",
    )
    parser.add_argument("--world-size", type=int, metavar="N", help="how many processes --launcher starts in total")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"folder of the runs and their records (default: {OUT}/PRESET)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the prepared corpus (default: data in --out)"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"also append to {RECORDS}, and skip the rows that it has; needs a checkout without local changes",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help=f"only list the rows: which ones are done in --out, and which ones {RECORDS.parent} has",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    for option, values in WMT14.choices.items():
        parser.add_argument(
            f"--{option}", choices=values, help=f"only for wmt14; the paper does not report it (default: {values[0]})"
        )
    split = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:split])
    options.more = tuple(argv[split + 1 :])
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options) -> None:
    """Completes the options; exits with an error for values that are wrong or contradict each other."""
    preset = options.preset = PRESETS[options.preset]
    names = [row.name for row in preset.rows]
    for name in options.rows or ():
        if name not in names:
            parser.error(f"--rows {name}: expected some of {', '.join(names)}")
    for flag, values in (("--rows", options.rows or ()), ("--seeds", options.seeds)):
        if len(set(values)) < len(values):
            parser.error(f"{flag} {' '.join(map(str, values))}: expected each value at most once")
    options.choices = {}
    for option in WMT14.choices:
        given = getattr(options, option)
        if option in preset.choices:
            options.choices[option] = given or preset.choices[option][0]
        elif given:
            parser.error(f"--{option} goes with --preset wmt14, not with {preset.name}")
    for flag, value, least in (("--jobs", options.jobs, 1), ("--seeds", min(options.seeds), 0)):
        if value < least:
            parser.error(f"{flag} {value}: expected {least} or more")
    if options.gpus is not None:
        try:
            options.gpus = tuple(int(number) for number in options.gpus.split(","))
        except ValueError:
            parser.error(f"--gpus {options.gpus}: expected numbers separated by commas")
        if options.cpu:
            parser.error("--gpus and --cpu contradict each other")
    if (options.launcher is None) != (options.world_size is None):
        parser.error("--launcher and --world-size go together")
    if options.launcher and (options.jobs > 1 or not preset.distributed):
        parser.error("--launcher goes with --preset wmt14 and one job at a time")
    if options.record and (preset.name == "smoke" or options.more):
        parser.error("--record: a smoke run, or a run with flags after --, is not a result for this table")

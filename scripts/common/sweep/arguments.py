"""The command line that the recipes share which run the rows of a table."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(description: str, presets: dict, out: Path, records: Path) -> argparse.ArgumentParser:
    """Returns the parser of a recipe's run.py, with the options that every recipe has.

    ``out`` is the folder that holds the runs of all presets; ``records`` is the file of the project's records.
    """
    result = argparse.ArgumentParser(
        prog="run.py",
        usage="%(prog)s --preset PRESET [OPTIONS] [-- FAIRSEQ-TRAIN-FLAGS]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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


def parse(parser: argparse.ArgumentParser, argv: list[str], presets: dict) -> argparse.Namespace:
    """Parses ``argv`` up to `--`; what follows is for fairseq-train and becomes ``more``.

    ``preset`` and ``gpus`` are replaced by what their values mean. Exits with an error for values that are wrong or
    contradict each other.
    """
    split = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:split])
    options.more = tuple(argv[split + 1 :])
    preset = options.preset = presets[options.preset]
    names = [row.name for row in preset.rows]
    for name in options.rows or ():
        if name not in names:
            parser.error(f"--rows {name}: expected some of {', '.join(names)}")
    for flag, values in (("--rows", options.rows or ()), ("--seeds", options.seeds)):
        if len(set(values)) < len(values):
            parser.error(f"{flag} {' '.join(map(str, values))}: expected each value at most once")
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
    if options.record and (preset.name == "smoke" or options.more):
        parser.error("--record: a smoke run, or a run with flags after --, is not a result for this table")
    return options

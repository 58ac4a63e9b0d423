"""The command line that all experiments share."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from ..arguments import Parser
from ..commands import flags_of

if TYPE_CHECKING:
    from .experiment import Experiment

# What these options ask for is done with finished runs.
ON_FINISHED = ("--compare", "--test-on", "--source-window")
_GO_ON = "Interrupted, the same command continues: finished steps are kept, recorded rows are skipped, and\n{}.\n"


def parser(experiment: Experiment) -> Parser:
    """Returns the parser of an experiment, with its own options."""
    out = experiment.folder_of(argparse.Namespace(preset=argparse.Namespace(name="PRESET")))
    description = f"{experiment.description}\n{_GO_ON.format(experiment.goes_on)}"
    presets = list(experiment.presets)
    prog = f"python -m scripts.experiments {experiment.name}"
    theirs = "FAIRSEQ-TRAIN-FLAGS" if experiment.takes_flags else ""
    result = Parser(prog, description, theirs, usage="--preset PRESET [OPTIONS]")
    add = result.add_argument
    add("--preset", choices=presets, required=len(presets) > 1, default=presets[0], help="its scale, and so its cost")
    add("--rows", nargs="+", metavar="ROW", help="rows to run, or patterns such as 'dpfp,*' (default: all)")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="seeds to run (default: 1)")
    add("--jobs", type=int, default=1, metavar="N", help="how many runs go on at a time (default: 1)")
    add("--gpus", metavar="0,1,...", help="GPUs to use (default: those that torch sees)")
    add("--cpu", action="store_true", help="use no GPU, even if there is one")
    add("--out", type=Path, metavar="DIR", help=f"folder of the runs and their records (default: {out})")
    add("--data", type=Path, metavar="DIR", help="folder of the prepared data (default: data in --out)")
    add("--prepare", action="store_true", help="only prepare the data, for example where there is a network")
    what = f"also append to {experiment.records}, and skip the rows that it has; needs a checkout without local changes"
    add("--record", action="store_true", help=what)
    what = "only print the runs that are missing, and their commands as far as known"
    add("--dry-run", action="store_true", help=what)
    rows = {row.name: None for preset in experiment.presets.values() for row in preset.rows}
    result.epilog = fill(f"rows: {', '.join(rows)}", 80, break_on_hyphens=False)
    if experiment.compared:
        add("--compare", metavar="ROW", help="only compare finished rows with this one, by paired bootstrap")
    experiment.add_options(result)
    return result


def _chosen(parser: Parser, rows: tuple, patterns: list[str] | None) -> list:
    """Returns the rows that a name or a pattern names, in the order of the preset."""
    if patterns is None:
        return list(rows)
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for row in rows):
            parser.error(f"--rows {pattern}: expected some of {', '.join(row.name for row in rows)}")
    if len(set(patterns)) < len(patterns):
        parser.error(f"--rows {' '.join(patterns)}: expected each value at most once")
    return [row for row in rows if any(fnmatchcase(row.name, pattern) for pattern in patterns)]


def parse(parser: Parser, argv: list[str], experiment: Experiment) -> argparse.Namespace:
    """Parses ``argv`` up to `--`; what follows is for fairseq-train and becomes ``more``.

    ``preset``, ``rows`` and ``gpus`` are replaced by what their values mean. Exits with an error for values that are
    wrong or contradict each other.
    """
    given, more = parser.split(argv)
    given.more = tuple(more)
    if more and not experiment.takes_flags:
        parser.error(f"{' '.join(more)}: expected no flags after --")
    if own := [flag for flag in flags_of(more) if flag in experiment.own_flags]:
        parser.error(f"{own[0]} after --: expected other flags, because the experiment itself sets this one")
    given.preset = experiment.presets[given.preset]
    all_rows = given.rows is None
    given.rows = _chosen(parser, given.preset.rows, given.rows)
    if baseline := getattr(given, "compare", None):
        names = {row.name: row for row in given.preset.rows}
        if baseline not in names:
            parser.error(f"--compare {baseline}: expected one of {', '.join(names)}")
        if all_rows:
            given.rows.remove(names[baseline])
        given.compare = names[baseline]
    if len(set(given.seeds)) < len(given.seeds):
        parser.error(f"--seeds {' '.join(map(str, given.seeds))}: expected each value at most once")
    parser.require_least("--jobs", given.jobs, 1)
    parser.require_least("--seeds", min(given.seeds), 0)
    if given.gpus is not None:
        try:
            numbers = tuple(int(number) for number in given.gpus.split(","))
        except ValueError:
            numbers = ()
        if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
            parser.error(f"--gpus {given.gpus}: expected different numbers from 0 up, separated by commas")
        given.gpus = numbers
        if given.cpu:
            parser.error("--gpus and --cpu contradict each other")
    if given.record and (given.preset.name in ("rehearsal", "smoke") or given.more):
        parser.error("--record: a smoke run, a rehearsal, or a run with flags after --, is not a result for this table")
    finished = [flag for flag in ON_FINISHED if getattr(given, flag[2:].replace("-", "_"), None)]
    if len(finished) + given.dry_run + given.prepare + bool(more) > 1 and finished:
        wrong = "another such option, --dry-run, --prepare and flags after --"
        parser.error(f"{finished[0]} is for finished runs: expected it without {wrong}")
    if finished and given.jobs > 1:
        parser.error(f"{finished[0]} takes one run after the other: expected it without --jobs {given.jobs}")
    experiment.check_options(parser, given)
    return given

"""The command line that all experiments share."""

import argparse
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import fill

from ..arguments import Parser
from ..commands import flags_of
from ..row import Row
from .preset import Preset

# The options that ask for something that is done with finished runs.
ON_FINISHED = ("--compare", "--test-on", "--source-window")


class Call(argparse.Namespace):
    """The options of one call, where :func:`parse` has put presets, rows and GPUs in place of their names.

    - `more`: flags of fairseq-train.
    - `compare`: the row with which finished rows are compared.
    - `command`: the words of the call.
    """

    preset: Preset
    rows: list[Row]
    seeds: list[int]
    jobs: int
    gpus: tuple[int, ...] | None
    cpu: bool
    out: Path
    data: Path
    prepare: bool
    record: bool
    dry_run: bool
    more: tuple[str, ...]
    compare: Row | None = None
    command: list[str]


def add_options(parser: Parser, presets: dict[str, Preset], out: Path, records: Path) -> None:
    """Adds the options that all experiments have, and lists the rows below them.

    ``out`` is the default folder of the runs, and ``records`` the project's file of records.
    """
    add, names = parser.add_argument, list(presets)
    add("--preset", choices=names, required=len(names) > 1, default=names[0], help="its scale, and so its cost")
    add("--rows", nargs="+", metavar="ROW", help="rows to run, or patterns such as 'dpfp,*' (default: all)")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="seeds to run (default: 1)")
    add("--jobs", type=int, default=1, metavar="N", help="how many runs go on at a time (default: 1)")
    add("--gpus", metavar="0,1,...", help="GPUs to use (default: those that torch sees)")
    add("--cpu", action="store_true", help="use no GPU, even if there is one")
    add("--out", type=Path, metavar="DIR", help=f"folder of the runs and their records (default: {out})")
    add("--data", type=Path, metavar="DIR", help="folder of the prepared data (default: data in --out)")
    add("--prepare", action="store_true", help="only prepare the data, for example where there is a network")
    what = f"also append to {records}, and skip the rows that it has; needs a checkout without local changes"
    add("--record", action="store_true", help=what)
    what = "only print the runs that are missing, and their commands as far as known"
    add("--dry-run", action="store_true", help=what)
    rows = {row.name: None for preset in presets.values() for row in preset.rows}
    parser.epilog = fill(f"rows: {', '.join(rows)}", 80, break_on_hyphens=False)


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


def _gpus(parser: Parser, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        parser.error(f"--gpus {text}: expected different numbers from 0 up, separated by commas")
    return numbers


def parse(parser: Parser, argv: list[str], presets: dict[str, Preset], own_flags: Collection[str] | None) -> Call:
    """Parses ``argv``: options, and after `--` flags of fairseq-train.

    ``own_flags`` are those that the experiment sets itself; None if it takes none at all. Exits with an error for
    values that are wrong or contradict each other.
    """
    call, more = parser.split(argv, Call())
    call.more = tuple(more)
    if more and own_flags is None:
        parser.error(f"{' '.join(more)}: expected no flags after --")
    if own := [flag for flag in flags_of(more) if flag in (own_flags or ())]:
        parser.error(f"{own[0]} after --: expected other flags, because the experiment itself sets this one")
    call.preset = presets[call.preset]
    patterns, call.rows = call.rows, _chosen(parser, call.preset.rows, call.rows)
    if call.compare is not None:
        names = {row.name: row for row in call.preset.rows}
        if call.compare not in names:
            parser.error(f"--compare {call.compare}: expected one of {', '.join(names)}")
        call.compare = names[call.compare]
        if patterns is None:
            call.rows.remove(call.compare)
    if len(set(call.seeds)) < len(call.seeds):
        parser.error(f"--seeds {' '.join(map(str, call.seeds))}: expected each value at most once")
    parser.require_least("--jobs", call.jobs, 1)
    parser.require_least("--seeds", min(call.seeds), 0)
    if call.gpus is not None:
        call.gpus = _gpus(parser, call.gpus)
        if call.cpu:
            parser.error("--gpus and --cpu contradict each other")
    if call.record and (call.preset.name in ("rehearsal", "smoke") or more):
        parser.error("--record: a smoke run, a rehearsal, or a run with flags after --, is not a result for this table")
    finished = [flag for flag in ON_FINISHED if getattr(call, flag[2:].replace("-", "_"), None)]
    if len(finished) + call.dry_run + call.prepare + bool(more) > 1 and finished:
        wrong = "another such option, --dry-run, --prepare and flags after --"
        parser.error(f"{finished[0]} is for finished runs: expected it without {wrong}")
    if finished and call.jobs > 1:
        parser.error(f"{finished[0]} takes one run after the other: expected it without --jobs {call.jobs}")
    return call

"""Makes a table, or a plot, of your own trainings.

  fwp table trainings --results checkpoints --references test.de --plot bleu.pdf

The table has a row for each save-dir of fairseq-train that is found at any depth of the folders. The command reads the
checkpoint, the logs (*.log in the save-dir, beside its checkpoints/, or with its name) and the output of
fairseq-generate (generate-*.txt, gen*.out). Trainings that differ in nothing but the seed share a row.

Records become rows too. A record is a JSON object on one line. It must have feature_map and updates, and may have name,
update_rule, d_dot, seed, parameters, valid_loss, valid_bleu, bleu, train_seconds and sentences_per_second.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from ..files import write_atomically
from ..records import read
from ..tables.training_plots import AXES
from .errors import CommandError, UsageError

NAME = "trainings"


def add_arguments(parser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        choices=[NAME],
        default=NAME,
        help="the table; there is only this one, so the name may be left out",
    )
    parser.add_argument(
        "--results",
        required=True,
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folders to search for save-dirs and for records (.jsonl and record.json); or .jsonl files",
    )
    parser.add_argument(
        "--references", type=Path, metavar="FILE", help="raw reference text; with it, sacreBLEU scores the translations"
    )
    add_output_arguments(parser)
    axes = "; ".join(f"{name}: {meaning}" for name, meaning in AXES.items())
    parser.add_argument(
        "--axis", choices=AXES, help=f"what --plot draws over ({axes}; default: d_dot where there are several values)"
    )


def add_output_arguments(parser) -> None:
    parser.add_argument(
        "--format", choices=["markdown", "latex", "csv"], default="markdown", help="the format of the table"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the table into this file instead of printing it"
    )
    parser.add_argument(
        "--plot", nargs="+", type=Path, metavar="FILE", help="draw the table into .png, .svg or .pdf files"
    )
    parser.add_argument("--check", action="store_true", help="change no file; fail if a file would change")


def refuse_plots(args, name: str, table) -> None:
    """Raises UsageError for a --plot that cannot be drawn."""
    from ..tables.plot import FORMATS

    for path in args.plot or ():
        if path.suffix[1:] not in FORMATS:
            raise UsageError(f"--plot {path}: expected a file name that ends with .{' or .'.join(FORMATS)}")
    if args.plot and table.plot is None:
        raise UsageError(f"--plot: table {name} has no plot")


def write(path: Path, content: bytes, check: bool) -> None:
    """Writes the file unless it has this content already. With ``check``, raises CommandError instead of writing."""
    if not path.is_file() or path.read_bytes() != content:
        _refuse_change(path, check)
        write_atomically(path, content)


def write_plot(path: Path, plot, check: bool) -> None:
    """Draws the plot into the file, unless the file shows it already. With ``check``, raises CommandError instead.

    Compares the description that each plot file contains, because another version of matplotlib writes other bytes.
    """
    from ..tables.plot import description, draw, embedded_description

    if path.is_file() and embedded_description(path.read_bytes()) == description(plot):
        return
    _refuse_change(path, check)
    try:
        content = draw(plot, path.suffix[1:])
    except ImportError as error:
        raise CommandError(f"--plot: {error}; pip install matplotlib") from None
    write_atomically(path, content)


def _refuse_change(path: Path, check: bool) -> None:
    if check:
        raise CommandError(f"{path} does not agree with the records: run the same command without --check")


def show(args, name: str, table, records: list[dict]) -> None:
    """Writes, prints and draws the table, as the arguments say. Raises ValueError if a record lacks a field."""
    from ..tables.render import FORMATS
    from ..tables.table import grid, run_rows

    for path in args.plot or ():
        write_plot(path, table.plot(run_rows(table, name, records)), args.check)
    text = FORMATS[args.format](grid(table, name, records))
    if args.output is not None:
        write(args.output, f"{text}\n".encode(), args.check)
    else:
        print(text)


def _records(args) -> list[dict]:
    """Returns the records that --results names, and one for each save-dir without a record of its own, oldest first."""
    found = read(*args.results)
    folders = [folder for folder in args.results if folder.is_dir()]
    if any(next(folder.rglob("checkpoint*.pt"), None) for folder in folders):
        from .plugin import import_plugin
        from .trainings import records_of

        import_plugin()
        found += [record for folder in folders for record in records_of(folder, args.references)]
    return sorted(found, key=lambda record: (record.get("environment") or {}).get("date", ""))


def run(args) -> int:
    from ..tables.trainings import TRAININGS

    refuse_plots(args, NAME, TRAININGS)
    if args.check and args.output is None and args.plot is None:
        raise UsageError("--check needs a file: --output or --plot")
    if args.axis and not args.plot:
        raise UsageError("--axis goes with --plot")
    records = _records(args)
    if not any(TRAININGS.key(record) for record in records):
        raise CommandError(f"--results {' '.join(map(str, args.results))}: no checkpoints and no records of trainings")
    try:
        show(args, NAME, replace(TRAININGS, plot=partial(TRAININGS.plot, axis=args.axis)), records)
    except ValueError as error:
        raise CommandError(error) from None
    except (TypeError, AttributeError, LookupError) as error:  # a record may hold anything
        raise CommandError(f"a record cannot be shown: {error}") from None
    return 0

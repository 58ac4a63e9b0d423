"""Makes a table and, if requested, a plot of your own trainings.

  fwp table --results checkpoints --references test.de --plot bleu.pdf

The table has one row for each save-dir of fairseq-train in the folders, at any depth. The command reads the checkpoint,
the logs (*.log in the save-dir, next to checkpoints/, or named after it), and the output of fairseq-generate
(generate-*.txt, gen*.out) or, with --references, the translations.* of `fwp train`. Trainings that differ only in the
seed share a row. Updates of a fine-tuned model are those since it was loaded from another checkpoint. Columns without a
value in any row are only in csv.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from ..files import write_atomically
from ..tables.training_plots import AXES
from . import bleu_tokenizer
from .errors import CommandError, UsageError


def add_arguments(parser) -> None:
    parser.add_argument(
        "--results", required=True, nargs="+", type=Path, metavar="DIR", help="folders to search for save-dirs"
    )
    parser.add_argument(
        "--references", type=Path, metavar="FILE", help="raw reference text; with it, sacreBLEU scores the translations"
    )
    bleu_tokenizer.add_argument(parser)
    add_output_arguments(parser)
    axes = "; ".join(f"{name}: {meaning}" for name, meaning in AXES.items())
    parser.add_argument(
        "--axis", choices=AXES, help=f"the horizontal axis of --plot ({axes}; default: d_dot if it has several values)"
    )


def add_output_arguments(parser) -> None:
    parser.add_argument(
        "--format", choices=["markdown", "latex", "csv"], default="markdown", help="the format of the table"
    )
    parser.add_argument(
        "--plot", nargs="+", type=Path, metavar="FILE", help="draw the table into .png, .svg or .pdf files"
    )


def refuse_plots(args, name: str, table) -> None:
    """Raises UsageError for a --plot that cannot be drawn."""
    from ..tables.plot import FORMATS

    for path in args.plot or ():
        if path.suffix[1:] not in FORMATS:
            raise UsageError(f"--plot {path}: expected a file name that ends with .{' or .'.join(FORMATS)}")
        if not path.parent.is_dir():
            raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if args.plot and table.plot is None:
        raise UsageError(f"--plot: table {name} has no plot")


def write_plot(path: Path, plot) -> None:
    from ..tables.plot import draw

    write_atomically(path, draw(plot, path.suffix[1:]))


def show(args, name: str, table, records: list[dict], hide_empty: bool = False) -> None:
    """Prints and draws the table, as the arguments say; ``hide_empty`` leaves columns without any value out.

    Raises ValueError if a record lacks a field.
    """
    from ..tables.render import FORMATS
    from ..tables.table import grid, run_rows

    try:
        for path in args.plot or ():
            write_plot(path, table.plot(run_rows(table, name, records)))
        made = grid(table, name, records)
        if hide_empty and args.format != "csv":  # whose columns programs expect
            made = made.without_empty_columns()
        print(FORMATS[args.format](made))
    except ImportError as error:
        raise CommandError(f"{error}; pip install matplotlib tabulate") from None


def run(args) -> int:
    from ..tables.trainings import TRAININGS
    from .plugin import import_plugin
    from .trainings import records_of

    refuse_plots(args, "trainings", TRAININGS)
    if args.axis and not args.plot:
        raise UsageError("--axis goes with --plot")
    import_plugin()
    records = records_of(args.results, args.references, args.tokenize)
    if not records:
        raise CommandError(f"--results {' '.join(map(str, args.results))}: expected save-dirs of fairseq-train in it")
    try:
        drawn = partial(TRAININGS.plot, axis=args.axis)
        show(args, "trainings", replace(TRAININGS, plot=drawn), records, hide_empty=True)
    except ValueError as error:
        raise CommandError(error) from None
    return 0

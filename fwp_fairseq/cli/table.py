"""Makes a table, or a plot, of your own trainings.

  fwp table trainings --results checkpoints --references test.de --plot bleu.pdf

A row for each save-dir of fairseq-train at any depth of the folders, from its checkpoint, its logs (*.log in it, beside
its checkpoints/, or with its name) and what fairseq-generate wrote there (generate-*.txt, gen*.out); those that differ
in nothing but the seed are one row. Records are rows too: one JSON object a line with feature_map and updates, and what
is known of name, update_rule, d_dot, seed, parameters, valid_loss, valid_bleu, bleu, train_seconds,
sentences_per_second.
"""

from pathlib import Path

from ..files import write_atomically
from ..records import read
from .errors import CommandError, UsageError

NAME = "trainings"


def add_arguments(parser) -> None:
    parser.add_argument("name", nargs="?", choices=[NAME], default=NAME, help="the only table, so it may be left out")
    parser.add_argument(
        "--results",
        required=True,
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folders of save-dirs or of .jsonl and record.json records, at any depth; or .jsonl files",
    )
    parser.add_argument(
        "--references", type=Path, metavar="FILE", help="raw text that sacreBLEU scores translations with"
    )
    add_output_arguments(parser)


def add_output_arguments(parser) -> None:
    parser.add_argument("--format", choices=["markdown", "latex", "csv"], default="markdown", help="of the table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the table is written, instead of printed")
    parser.add_argument("--plot", nargs="+", type=Path, metavar="FILE", help="the table drawn, as .png, .svg or .pdf")
    parser.add_argument("--check", action="store_true", help="change no file; fail when one would change")


def refuse_plots(args, name: str, table) -> None:
    """UsageError for a --plot that cannot be drawn."""
    from ..tables.plot import FORMATS

    for path in args.plot or ():
        if path.suffix[1:] not in FORMATS:
            raise UsageError(f"--plot {path}: expected a file name that ends with .{' or .'.join(FORMATS)}")
    if args.plot and table.plot is None:
        raise UsageError(f"--plot: table {name} has no plot")


def write(path: Path, content: bytes, check: bool) -> None:
    """Leaves a file alone that says this already; with ``check``, every file."""
    if not path.is_file() or path.read_bytes() != content:
        _refuse_change(path, check)
        write_atomically(path, content)


def write_plot(path: Path, plot, check: bool) -> None:
    """As :func:`write`, by what is written in the file: another matplotlib draws the same in other bytes."""
    from ..tables.plot import described, description, draw

    if path.is_file() and described(path.read_bytes()) == description(plot):
        return
    _refuse_change(path, check)
    try:
        content = draw(plot, path.suffix[1:])
    except ImportError as error:
        raise CommandError(f"--plot: {error}; pip install matplotlib") from None
    write_atomically(path, content)


def _refuse_change(path: Path, check: bool) -> None:
    if check:
        raise CommandError(f"{path} is not what the records say: run the same command without --check")


def show(args, name: str, table, records: list[dict]) -> None:
    """Writes or prints the table, and draws it, as the arguments ask for. ValueError: a record lacks a field."""
    from ..tables.render import FORMATS
    from ..tables.table import grid, run_rows

    for path in args.plot or ():
        write_plot(path, table.plot(run_rows(table, name, records)), args.check)
    text = FORMATS[args.format](grid(table, name, records))
    if args.output is not None:
        write(args.output, f"{text}\n".encode(), args.check)
    elif not args.plot:
        print(text)


def _records(args) -> list[dict]:
    """A run's own record stands for its save-dir."""
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
    try:
        show(args, NAME, TRAININGS, _records(args))
    except ValueError as error:
        raise CommandError(error) from None
    return 0

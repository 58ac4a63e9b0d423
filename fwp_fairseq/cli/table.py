"""Makes tables of results from the records of runs: one as text or as a plot, or all those of a Markdown file.

  fwp table quickstart --results benchmarks/results --format latex
  fwp table bleu_vs_d_dot-multi30k --results benchmarks/results --plot docs/figures/bleu_vs_d_dot-multi30k.svg
  fwp table --results benchmarks/results --readme README.md
  fwp table trainings --results checkpoints --references test.de --plot bleu.pdf

`trainings` is the table of your own: a row for each save-dir of fairseq-train at any depth of the folders, from its
checkpoint, its logs (*.log in it, beside its checkpoints/, or with its name) and what fairseq-generate wrote there
(generate-*.txt, gen*.out); those that differ in nothing but the seed are one row. Records are rows too: one JSON object
a line with feature_map and updates, and what is known of name, update_rule, d_dot, seed, parameters, valid_loss,
valid_bleu, bleu, train_seconds, sentences_per_second.

In a Markdown file a table NAME stands between <!-- table:NAME --> and <!-- /table:NAME -->; what is between is
replaced.
"""

from pathlib import Path

from ..files import write_atomically
from ..records import read
from .errors import CommandError, UsageError


def add_arguments(parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the table to print")
    parser.add_argument(
        "--results",
        required=True,
        nargs="+",
        type=Path,
        metavar="DIR",
        help=".jsonl records or folders of them, or of runs (record.json and, for trainings, save-dirs, at any depth)",
    )
    parser.add_argument(
        "--references", type=Path, metavar="FILE", help="of trainings: raw text that sacreBLEU scores translations with"
    )
    parser.add_argument("--format", choices=["markdown", "latex", "csv"], default="markdown", help="of NAME")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where NAME is written, instead of printed")
    parser.add_argument("--plot", nargs="+", type=Path, metavar="FILE", help="NAME drawn, as .png, .svg or .pdf")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="Markdown file with table markers")
    parser.add_argument("--check", action="store_true", help="change no file; fail when one would change")


def _write(path: Path, content: bytes, check: bool, same=lambda old, new: old == new) -> None:
    """Leaves a file alone that says this already; with ``check``, every file."""
    if path.is_file() and same(path.read_bytes(), content):
        return
    if check:
        raise CommandError(f"{path} is not what the records say: run fwp table without --check")
    write_atomically(path, content)


def _write_plots(args, table, rows: list[dict]) -> None:
    from ..tables.plot import described, draw

    plot = table.plot(rows)
    for path in args.plot:
        try:
            content = draw(plot, path.suffix[1:])
        except ImportError as error:
            raise CommandError(f"--plot: {error}; pip install matplotlib") from None
        # Another matplotlib draws the same in other bytes.
        _write(path, content, args.check, same=lambda old, new: described(old) == described(new))


def _refuse_nonsense(args) -> None:
    from ..tables import TABLES
    from ..tables.plot import FORMATS

    if (args.name is None) == (args.readme is None):
        raise UsageError("expected either the NAME of a table or --readme FILE")
    if args.name is not None and args.name not in TABLES:
        raise UsageError(f"unknown table {args.name!r}, expected one of {', '.join(TABLES)}")
    if args.check and args.output is None and args.plot is None and args.readme is None:
        raise UsageError("--check needs a file: --output, --plot or --readme")
    for flag, value in (("--output", args.output), ("--plot", args.plot)):
        if value is not None and args.name is None:
            raise UsageError(f"{flag} needs the NAME of a table")
    for path in args.plot or ():
        if path.suffix[1:] not in FORMATS:
            raise UsageError(f"--plot {path}: expected a file name that ends with .{' or .'.join(FORMATS)}")
    if args.references is not None and args.name != "trainings":
        raise UsageError("--references goes with the table trainings")
    if args.plot and TABLES[args.name].plot is None:
        raise UsageError(f"--plot: table {args.name} has no plot")


def _with_trainings(args, records: list[dict]) -> list[dict]:
    """A run's own record stands for its save-dir."""
    folders = [folder for folder in args.results if folder.is_dir()]
    if not any(next(folder.rglob("checkpoint*.pt"), None) for folder in folders):
        return records
    from .plugin import import_plugin
    from .trainings import records_of

    import_plugin()
    found = [record for folder in folders for record in records_of(folder, args.references)]
    return sorted([*records, *found], key=lambda record: (record.get("environment") or {}).get("date", ""))


def run(args) -> int:
    from ..tables import TABLES
    from ..tables.render import FORMATS, regenerate
    from ..tables.table import grid, run_rows

    _refuse_nonsense(args)
    if args.readme is not None and not args.readme.is_file():
        raise CommandError(f"--readme {args.readme}: no such file")
    try:
        records = read(*args.results)
        if args.readme is not None:
            text = regenerate(args.readme.read_text(encoding="utf-8"), records)
            _write(args.readme, text.encode(), args.check)
            return 0
        if args.name == "trainings":
            records = _with_trainings(args, records)
        table = TABLES[args.name]
        if args.plot:
            _write_plots(args, table, run_rows(table, args.name, records))
        text = FORMATS[args.format](grid(table, args.name, records))
    except ValueError as error:
        raise CommandError(error) from None
    if args.output is not None:
        _write(args.output, f"{text}\n".encode(), args.check)
    elif not args.plot:
        print(text)
    return 0

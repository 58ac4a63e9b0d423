"""Makes tables of results from the records of runs: one as text, or all those of a Markdown file.

  fwp table quickstart --results benchmarks/results --format latex
  fwp table --results benchmarks/results --readme README.md

In a Markdown file a table NAME stands between <!-- table:NAME --> and <!-- /table:NAME -->; what is between is
replaced.
"""

from pathlib import Path

from ..records import read
from .errors import CommandError, UsageError
from .files import replaced


def add_arguments(parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the table to print")
    parser.add_argument(
        "--results",
        required=True,
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folders of .jsonl records, or of runs (record.json, at any depth)",
    )
    parser.add_argument("--format", choices=["markdown", "latex", "csv"], default="markdown", help="of NAME")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where NAME is written, instead of printed")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="Markdown file with table markers")
    parser.add_argument("--check", action="store_true", help="change no file; fail when one would change")


def _write(path: Path, content: bytes, check: bool) -> None:
    """Leaves a file alone that holds this already; with ``check``, every file."""
    if path.is_file() and path.read_bytes() == content:
        return
    if check:
        raise CommandError(f"{path} is not what the records say: run fwp table without --check")
    with replaced(path) as file:
        file.write(content)


def run(args) -> int:
    from ..tables import TABLES
    from ..tables.render import FORMATS, regenerate
    from ..tables.table import grid

    if (args.name is None) == (args.readme is None):
        raise UsageError("expected either the NAME of a table or --readme FILE")
    if args.check and args.output is None and args.readme is None:
        raise UsageError("--check needs a file: --output or --readme")
    if args.name is not None and args.name not in TABLES:
        raise UsageError(f"unknown table {args.name!r}, expected one of {', '.join(TABLES)}")
    if args.readme is not None and not args.readme.is_file():
        raise CommandError(f"--readme {args.readme}: no such file")
    try:
        records = read(*args.results)
        if args.readme is not None:
            text = regenerate(args.readme.read_text(encoding="utf-8"), records)
            _write(args.readme, text.encode(), args.check)
            return 0
        text = FORMATS[args.format](grid(TABLES[args.name], args.name, records))
    except ValueError as error:
        raise CommandError(error) from None
    if args.output is None:
        print(text)
    else:
        _write(args.output, f"{text}\n".encode(), args.check)
    return 0

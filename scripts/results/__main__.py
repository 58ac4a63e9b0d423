"""Makes the tables and figures of this repository from its records.

  python -m scripts.results                    updates the tables of every Markdown file and the plots in docs/figures
  python -m scripts.results --check            changes nothing, and fails if a file does not agree with the records
  python -m scripts.results quickstart --format latex
  python -m scripts.results bleu_vs_d_dot-multi30k --plot docs/figures/bleu_vs_d_dot-multi30k.svg

In a Markdown file, the lines between <!-- table:NAME --> and <!-- /table:NAME --> are replaced by the table NAME. In
docs/figures, each file shows the plot of the table that it is named after. For tables of your own trainings, use
`fwp table`.
"""

import argparse
import sys
from pathlib import Path

from fwp_fairseq.cli import Parser
from fwp_fairseq.cli.errors import CommandError, UsageError
from fwp_fairseq.cli.table import add_output_arguments, refuse_plots, show, write_plot
from fwp_fairseq.files import reason, write_atomically
from fwp_fairseq.tables.plot import description, embedded_description
from fwp_fairseq.tables.table import run_rows
from scripts.common.records import FOLDER, ROOT, read

from .pages import regenerate
from .tables import TABLES

FIGURES = ROOT / "docs/figures"


def pages() -> list[Path]:
    """Returns the Markdown files that may have tables."""
    return sorted(path for glob in ("*.md", "docs/*.md", "scripts/**/*.md") for path in ROOT.glob(glob))


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m scripts.results", description=__doc__, formatter_class=layout)
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"the table to print: {', '.join(TABLES)}")
    files = "files of records (.jsonl), or folders of such files (default: benchmarks/results)"
    parser.add_argument("--results", default=[FOLDER], nargs="+", type=Path, metavar="DIR", help=files)
    add_output_arguments(parser)
    parser.add_argument("--check", action="store_true", help="change no file; fail if a file would change")
    args = parser.parse_args(argv)
    if args.name is not None and args.name not in TABLES:
        raise UsageError(f"unknown table {args.name!r}, expected one of {', '.join(TABLES)}")
    if args.name is None and args.plot:
        raise UsageError("--plot needs the NAME of a table")
    if args.name is None and args.format != parser.get_default("format"):
        raise UsageError("--format needs the NAME of a table")
    if args.name is not None and args.check:
        raise UsageError("--check is about all tables: expected no NAME")
    if args.name is not None:
        refuse_plots(args, args.name, TABLES[args.name])
    return args


def _change(path: Path, check: bool) -> Path:
    if check:
        raise CommandError(f"{path} does not agree with the records: run the same command without --check")
    return path


def _run(args: argparse.Namespace) -> None:
    records = read(*args.results)
    if args.name is not None:
        show(args, args.name, TABLES[args.name], records)
        return
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (made := regenerate(text, records)) != text:
            write_atomically(_change(path, args.check), made)
    for path in sorted(FIGURES.glob("*.*")):
        table = TABLES.get(path.stem)
        if table is None or table.plot is None:
            raise CommandError(f"{path}: expected a figure with the name of a table that has a plot")
        plot = table.plot(run_rows(table, path.stem, records))
        # Another version of matplotlib writes other bytes.
        if embedded_description(path.read_bytes()) != description(plot):
            write_plot(_change(path, args.check), plot)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 if something failed, 2 for wrong arguments."""
    try:
        _run(_arguments(argv))
    except (UsageError, CommandError, OSError, ValueError) as error:
        print(f"scripts.results: error: {' '.join(reason(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

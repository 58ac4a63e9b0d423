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
from fwp_fairseq.cli.table import add_output_arguments, refuse_plots, show, write, write_plot
from fwp_fairseq.records import read
from fwp_fairseq.tables.table import run_rows
from scripts.common.records import FOLDER, ROOT

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
    parser.add_argument(
        "--results",
        default=[FOLDER],
        nargs="+",
        type=Path,
        metavar="DIR",
        help="files of records (.jsonl), or folders of such files or of runs (default: benchmarks/results)",
    )
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    if args.name is not None and args.name not in TABLES:
        raise UsageError(f"unknown table {args.name!r}, expected one of {', '.join(TABLES)}")
    if args.name is None:
        for flag, value in (("--output", args.output), ("--plot", args.plot)):
            if value is not None:
                raise UsageError(f"{flag} needs the NAME of a table")
    elif args.check and args.output is None and args.plot is None:
        raise UsageError("--check with the NAME of a table needs --output or --plot")
    else:
        refuse_plots(args, args.name, TABLES[args.name])
    return args


def _run(args: argparse.Namespace) -> None:
    records = read(*args.results)
    if args.name is not None:
        show(args, args.name, TABLES[args.name], records)
        return
    for path in pages():
        write(path, regenerate(path.read_text(encoding="utf-8"), records).encode(), args.check)
    for path in sorted(FIGURES.glob("*.*")):
        table = TABLES.get(path.stem)
        if table is None or table.plot is None:
            raise CommandError(f"{path}: expected a figure with the name of a table that has a plot")
        write_plot(path, table.plot(run_rows(table, path.stem, records)), args.check)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 if something failed, 2 for wrong arguments."""
    try:
        _run(_arguments(argv))
    except (UsageError, CommandError, OSError, ValueError) as error:
        print(f"scripts.results: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

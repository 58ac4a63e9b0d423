"""Renders a table as Markdown, LaTeX or CSV."""

import csv
import io

from ..text import printable
from .table import NONE, NOT_RUN, Grid, Number


def markdown(table: Grid) -> str:
    lines = [table.headings, ["---"] * len(table.headings), *table.rows]
    texts = ([printable(cell).replace("|", "\\|") for cell in line] for line in lines)
    text = "\n".join(f"| {' | '.join(line)} |" for line in texts)
    return f"{text}\n\n{table.note}" if table.note else text


def latex(table: Grid) -> str:
    """Returns a ``tabular`` for the LaTeX package booktabs. Raises ImportError if tabulate is not installed."""
    from tabulate import tabulate

    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.headings)
    sides = ["right" if any(isinstance(cell, Number | int) for cell in column) else "left" for column in columns]
    cells = [[printable(cell) for cell in row] for row in table.rows]
    text = tabulate(cells, table.headings, "latex_booktabs", colalign=sides if cells else None, disable_numparse=True)
    return "\n".join([text, *(f"% {line}" for line in table.note.replace("`", "").splitlines())])


def comma_separated(table: Grid) -> str:
    """Returns CSV for other programs to read.

    Numbers have full precision, standard deviations have columns of their own, a missing value is an empty cell, and
    the note is left out.
    """
    columns: list[list] = []
    for heading, *cells in zip(table.headings, *table.rows, strict=True):
        numbers = [cell if isinstance(cell, Number) else None for cell in cells]
        values = [
            None if cell in (NONE, NOT_RUN) else number.value if number else cell
            for cell, number in zip(cells, numbers, strict=True)
        ]
        columns.append([heading, *values])
        if any(number and number.spread is not None for number in numbers):
            columns.append([f"{heading}, standard deviation", *(number and number.spread for number in numbers)])
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
    return file.getvalue().removesuffix("\n")


FORMATS = {"markdown": markdown, "latex": latex, "csv": comma_separated}

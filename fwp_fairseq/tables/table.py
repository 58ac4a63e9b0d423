"""Defines tables: which records are the rows of a table, and how the cells of a row are made."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .plot import Plot

NOT_RUN, NONE = "not run", "–"


def over_seeds(*fields: str) -> Callable[[list[dict]], dict]:
    """Returns a function that combines the newest records of all seeds into one.

    Each of the given fields becomes its mean over the seeds. ``spread`` holds the sample standard deviations if there
    is more than one seed, ``seeds`` lists the seeds, and ``environments`` those of their records. All other fields are
    those of the newest record.
    """

    def combine(records: list[dict]) -> dict:
        by_seed = {record["seed"]: record for record in records}
        environments = [record.get("environment") for _, record in sorted(by_seed.items())]
        merged: dict = {**records[-1], "seeds": sorted(by_seed), "environments": environments, "spread": {}}
        for name in fields:
            values = [record[name] for record in by_seed.values()]
            if any(value is None for value in values):
                merged[name] = None
                continue
            merged[name] = statistics.fmean(values)
            if len(values) > 1:
                merged["spread"][name] = statistics.stdev(values)
        return merged

    return combine


@dataclass(frozen=True)
class Table:
    """Describes a table that is made from records.

    - ``columns``: for each heading, a function that returns the cell of a row: a text, a :class:`Number`, or any other
      object with ``str``.
    - ``key``: records with the same key become one row. A record whose key is None is left out.
    - ``combine``: makes one row of the records with the same key, which it receives oldest first. By default the
      newest record is the row.
    - ``expected``: rows that come first, in this order, as partial records. If no record agrees with an expected row,
      the row is shown all the same, and the cells that need a field it does not have say "not run".
    - ``note``: returns the text below the table, given the rows that were run.
    - ``select``: the fields and values that a record of this table must have; by default ``{"table": NAME}``.
    - ``plot``: returns the plot of the rows that were run.
    """

    columns: dict[str, Callable[[dict], object]]
    key: Callable[[dict], tuple | None]
    combine: Callable[[list[dict]], dict] = lambda records: records[-1]
    expected: list[dict] = field(default_factory=list)
    note: Callable[[list[dict]], str] = lambda rows: ""
    select: dict | None = None
    plot: Callable[[list[dict]], Plot] | None = None


class Number(NamedTuple):
    """A number in a cell: its value, the format in which it is written, and its standard deviation if there is one."""

    value: float
    style: str
    spread: float | None = None

    def __str__(self) -> str:
        text = format(self.value, self.style)
        return text if self.spread is None else f"{text} ± {format(self.spread, self.style)}"


def number(name: str, style: str, scale: float = 1) -> Callable[[dict], object]:
    """Returns a column that shows the number in a field, or a dash if the field is None."""

    def cell(record: dict) -> object:
        if record[name] is None:
            return NONE
        spread = record.get("spread", {}).get(name)
        return Number(record[name] * scale, style, None if spread is None else spread * scale)

    return cell


def update_rule(record: dict) -> str:
    return NONE if record["feature_map"] == "softmax" else record["update_rule"]


class Grid(NamedTuple):
    """A table with its cells made, ready to be rendered."""

    headings: list[str]
    rows: list[list[object]]
    note: str

    def without_empty_columns(self) -> "Grid":
        """Returns the table without the columns that have a dash in every row."""
        kept = [n for n in range(len(self.headings)) if any(row[n] != NONE for row in self.rows)]
        return Grid([self.headings[n] for n in kept], [[row[n] for n in kept] for row in self.rows], self.note)


def _position(table: Table, row: dict) -> int:
    """Returns the index of the expected row that this row agrees with; rows that were not expected come last."""
    matches = (number for number, partial in enumerate(table.expected) if partial.items() <= row.items())
    return next(matches, len(table.expected))


def _order(values: tuple) -> tuple:
    """Returns a sort key: numbers come first, by size; other values follow, by their text."""
    return tuple((0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in values)


def _cell(make: Callable[[dict], object], partial: dict) -> object:
    try:
        return make(partial)
    except KeyError:
        return NOT_RUN


def run_rows(table: Table, name: str, records: list[dict]) -> list[dict]:
    """Returns the rows that were run, in the order of the table. Raises ValueError if a record lacks a field."""
    groups: dict[tuple, list[dict]] = {}
    wanted = {"table": name} if table.select is None else table.select
    for record in records:
        if wanted.items() <= record.items():
            try:
                key = table.key(record)
                if key is None:
                    continue
                groups.setdefault(key, []).append(record)
                for make in table.columns.values():
                    str(make(table.combine([record])))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"a record of table {name}: missing or invalid {error}: {record}") from None
    rows = [(key, table.combine(group)) for key, group in groups.items()]
    return [row for _, row in sorted(rows, key=lambda item: (_position(table, item[1]), _order(item[0])))]


def grid(table: Table, name: str, records: list[dict]) -> Grid:
    """Makes the table from the records that belong to it. Raises ValueError if a record lacks a field."""
    run = run_rows(table, name, records)
    missing = [row for row in table.expected if not any(row.items() <= other.items() for other in run)]
    rows = [(_position(table, row), [make(row) for make in table.columns.values()]) for row in run]
    rows += [(_position(table, row), [_cell(make, row) for make in table.columns.values()]) for row in missing]
    rows.sort(key=lambda item: item[0])
    return Grid(list(table.columns), [cells for _, cells in rows], table.note(run))

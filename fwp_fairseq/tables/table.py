"""What a table is: which records are its rows, and the cells of a row."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .plot import Plot

NOT_RUN, NONE = "not run", "–"


def newest(records: list[dict]) -> dict:
    return records[-1]


def over_seeds(*fields: str) -> Callable[[list[dict]], dict]:
    """The newest record of each seed as one: the mean of the given fields, and in ``spread`` their sample standard
    deviation where there is more than one seed; ``seeds`` lists them. Other fields are the newest record's."""

    def combine(records: list[dict]) -> dict:
        by_seed = {record["seed"]: record for record in records}
        merged: dict = {**records[-1], "seeds": sorted(by_seed), "spread": {}}
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
    """``columns``: heading to the cell of a record; a cell is a text, a :class:`Number`, or anything with ``str``.

    Records that agree in ``key`` are one row (None: no row), which ``combine`` (oldest first) makes of them; by default
    the newest wins. ``expected``: rows, as partial records, that come first, in this order; where no record agrees with
    one, each cell that needs more than is there says "not run". ``note``: the lines below the table, from the rows that
    were run.
    ``select``: what a record must hold to belong here; by default ``{"table": NAME}``. ``plot``: what is drawn of the
    rows that were run.
    """

    columns: dict[str, Callable[[dict], object]]
    key: Callable[[dict], tuple | None]
    combine: Callable[[list[dict]], dict] = newest
    expected: list[dict] = field(default_factory=list)
    note: Callable[[list[dict]], str] = lambda rows: ""
    select: dict | None = None
    plot: Callable[[list[dict]], Plot] | None = None


class Number(NamedTuple):
    """A cell that is written in a format of its own, with its standard deviation where there is one."""

    value: float
    style: str
    spread: float | None = None

    def __str__(self) -> str:
        text = format(self.value, self.style)
        return text if self.spread is None else f"{text} ± {format(self.spread, self.style)}"


def number(name: str, style: str, scale: float = 1) -> Callable[[dict], object]:
    """A cell of a number; a dash where the run could not tell it."""

    def cell(record: dict) -> object:
        if record[name] is None:
            return NONE
        spread = record.get("spread", {}).get(name)
        return Number(record[name] * scale, style, None if spread is None else spread * scale)

    return cell


def update_rule(record: dict) -> str:
    return NONE if record["feature_map"] == "softmax" else record["update_rule"]


class Grid(NamedTuple):
    """A table as it is shown."""

    headings: list[str]
    rows: list[list[object]]
    note: str


def _position(table: Table, row: dict) -> int:
    matches = (number for number, partial in enumerate(table.expected) if partial.items() <= row.items())
    return next(matches, len(table.expected))


def _order(values: tuple) -> tuple:
    """Sorts numbers by size and before everything else, which is sorted by its text."""
    return tuple((0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in values)


def _cell(make: Callable[[dict], object], partial: dict) -> object:
    try:
        return make(partial)
    except KeyError:
        return NOT_RUN


def run_rows(table: Table, name: str, records: list[dict]) -> list[dict]:
    """The rows that were run, in the order of the table; ValueError for a record that lacks a field."""
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
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"a record of table {name} lacks or garbles {error}: {record}") from None
    rows = [(key, table.combine(group)) for key, group in groups.items()]
    return [row for _, row in sorted(rows, key=lambda item: (_position(table, item[1]), _order(item[0])))]


def grid(table: Table, name: str, records: list[dict]) -> Grid:
    """The table from the records that belong to it; ValueError for a record that lacks a field."""
    run = run_rows(table, name, records)
    missing = [row for row in table.expected if not any(row.items() <= other.items() for other in run)]
    rows = [(_position(table, row), [make(row) for make in table.columns.values()]) for row in run]
    rows += [(_position(table, row), [_cell(make, row) for make in table.columns.values()]) for row in missing]
    rows.sort(key=lambda item: item[0])
    return Grid(list(table.columns), [cells for _, cells in rows], table.note(run))

"""Regenerates the tables of a Markdown file from the records of runs.

A table NAME stands between <!-- table:NAME --> and <!-- /table:NAME -->; what is between is replaced.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..records import read
from .errors import CommandError
from .files import replaced


class Table(NamedTuple):
    """``columns``: heading to the text of a record's cell. Records that agree in ``key`` are one row, the newest wins.

    ``expected``: rows (as partial records) that are shown as "not run" until there is a record that agrees with them.
    ``note``: the lines below the table, from the records that are shown.
    """

    columns: dict[str, Callable[[dict], object]]
    key: Callable[[dict], tuple]
    expected: list[dict]
    note: Callable[[list[dict]], str]


def _number(field: str, style: str, scale: float = 1) -> Callable[[dict], str]:
    """A cell of a number; a dash where the run could not tell it."""
    return lambda record: "–" if record[field] is None else format(record[field] * scale, style)


def _machine(record: dict) -> str:
    where = record["environment"]
    return where.get("gpu") or f"{where['cores']} × {where['cpu']}"


def _d_dot(record: dict) -> object:
    if record["feature_map"] == "softmax":
        return "–"
    return "natural" if record["d_dot"] is None else record["d_dot"]


def _rule(record: dict) -> str:
    return "–" if record["feature_map"] == "softmax" else record["update_rule"]


def _signatures(records: list[dict]) -> str:
    return "\n".join(f"sacreBLEU signature: `{text}`" for text in dict.fromkeys(r["signature"] for r in records))


TABLES = {
    "quickstart": Table(
        columns={
            "attention": lambda r: f"{r['feature_map']} ({r['arch']})",
            "update rule": _rule,
            "d_dot": _d_dot,
            "parameters": _number("parameters", ","),
            "updates": _number("updates", ","),
            "training, minutes": _number("train_seconds", ".1f", 1 / 60),
            "decoding, seconds": _number("decode_seconds", ".0f"),
            "valid loss": _number("valid_loss", ".3f"),
            "BLEU": _number("bleu", ".2f"),
            "seed": lambda r: r["seed"],
            "machine": _machine,
        },
        key=lambda r: (r["feature_map"], r["arch"], r.get("variant"), _rule(r), _d_dot(r), r["seed"], _machine(r)),
        expected=[{"feature_map": "dpfp"}, {"feature_map": "softmax"}],
        note=_signatures,
    ),
}


def markdown(name: str, records: list[dict]) -> str:
    """The table ``name`` from the records whose ``table`` is that name; ValueError for a record that lacks a field."""
    table = TABLES[name]
    newest: dict[tuple, dict] = {}
    cells: dict[tuple, list[str]] = {}
    for record in records:
        if record.get("table") != name:
            continue
        try:
            key = table.key(record)
            cells[key] = [str(cell(record)) for cell in table.columns.values()]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"a record of table {name} lacks or garbles {error}: {record}") from None
        newest[key] = record
    rows = sorted(cells.items(), key=lambda item: tuple(map(str, item[0])))
    lines = [list(table.columns), ["---"] * len(table.columns), *(row for _, row in rows)]
    for expected in table.expected:
        if not any(expected.items() <= record.items() for record in newest.values()):
            label = ", ".join(map(str, expected.values()))
            lines.append([label, "not run", *[""] * (len(table.columns) - 2)])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    note = table.note(list(newest.values()))
    return f"{text}\n\n{note}" if note else text


def regenerate(text: str, records: list[dict]) -> str:
    """``text`` with every table between its markers made anew; ValueError for an unknown table or a missing marker."""
    opened, closed = (re.findall(rf"<!-- {slash}table:(\S+) -->", text) for slash in ("", "/"))
    if opened != closed:
        raise ValueError(f"table markers do not pair up: opened {opened}, closed {closed}")
    for name in opened:
        if name not in TABLES:
            raise ValueError(f"unknown table {name!r}, expected one of {', '.join(TABLES)}")
    return re.sub(
        r"(<!-- table:(\S+) -->\n).*?(<!-- /table:\2 -->)",
        lambda match: f"{match[1]}{markdown(match[2], records)}\n{match[3]}",
        text,
        flags=re.DOTALL,
    )


def add_arguments(parser) -> None:
    parser.add_argument("--results", required=True, type=Path, metavar="DIR", help="folder of .jsonl records")
    parser.add_argument("--readme", required=True, type=Path, metavar="FILE", help="Markdown file with table markers")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the file would change")


def run(args) -> int:
    if not args.readme.is_file():
        raise CommandError(f"--readme {args.readme}: no such file")
    before = args.readme.read_text(encoding="utf-8")
    try:
        after = regenerate(before, read(args.results))
    except ValueError as error:
        raise CommandError(error) from None
    if args.check:
        if after != before:
            raise CommandError(f"{args.readme} is not what the records say: run fwp table without --check")
    elif after != before:
        with replaced(args.readme) as file:
            file.write(after.encode())
    return 0

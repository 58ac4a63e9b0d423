"""The tables of kinds of attention and of options, which need no records: rows of ``kinds.py`` and ``options.py``."""

from fwp_fairseq.kinds import KINDS, hyphens
from fwp_fairseq.options import OPTIONS, Option
from fwp_fairseq.tables.table import Table


def _flags(option: Option) -> str:
    sites = "" if option.is_common else f" ({', '.join(option.sites)})"
    common = [f"`--fwp-{hyphens(option.name)}`"] * option.is_common
    return ", ".join(common + [f"`{hyphens(option.name)}=`{sites}"] * option.per_site)


def _values(option: Option) -> str:
    if option.values is None:
        return "a whole number"
    named = (f"`{value}`" + (" (default)" if value == option.default else "") for value in option.values)
    return "; ".join(f"{name}: {what}" for name, what in zip(named, option.values.values(), strict=True))


def _values_of(kind: str) -> str:
    return ", ".join(f"`{hyphens(name)}={value}`" for name, value in KINDS[kind].options.items())


def _table(columns: dict, rows: list) -> Table:
    cells = {title: lambda row, make=make: make(row["of"]) for title, make in columns.items()}
    return Table(cells, key=lambda record: None, expected=[{"of": row} for row in rows])


TABLES = {
    "flags": _table(
        {"option": lambda o: o.title, "flags": _flags, "values": _values, "what it does": lambda o: o.help},
        list(OPTIONS.values()),
    ),
    "kinds": _table(
        {"kind": lambda k: f"`{k}`", "what it is": lambda k: KINDS[k].description, "options": _values_of}, list(KINDS)
    ),
}

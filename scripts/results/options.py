"""The tables of attention options, which need no records: a row for each of ``fwp_fairseq/options.py``."""

from fwp_fairseq.options import OPTIONS, Option
from fwp_fairseq.tables.table import Table


def _flags(option: Option) -> str:
    common = option.is_common
    flags = [option.flag(None if common else option.sites[0]), *[option.flag("SITE")] * (common and option.per_site)]
    return ", ".join(f"`{flag}`" for flag in flags)


def _values(option: Option, without: str | None = None) -> str:
    if option.values is None:
        return "a whole number"
    named = {f"`{value}`" + (" (default)" * (value == option.default)): what for value, what in option.values.items()}
    return ", ".join(f"{name}: {what}" for name, what in named.items() if name != f"`{without}`")


def _table(columns: dict) -> Table:
    cells = {title: lambda row, make=make: make(row["option"]) for title, make in columns.items()}
    return Table(cells, key=lambda record: None, expected=[{"option": option} for option in OPTIONS.values()])


TABLES = {
    "flags": _table(
        {"option": lambda o: o.title, "flags": _flags, "values": _values, "what it does": lambda o: o.help}
    ),
    # The layers have no softmax attention.
    "arguments": _table(
        {
            "argument": lambda o: f"`{o.name}`",
            "values": lambda o: _values(o, "softmax" if o.name == "feature_map" else None),
            "what it does": lambda o: o.help,
        }
    ),
}

"""Writes the tables of attention options into the documentation: python -m scripts.option_tables

They are made from ``fwp_fairseq/options.py`` and stand between HTML comments; tests/test_options.py checks them.
"""

import re
from pathlib import Path

from fwp_fairseq.options import OPTIONS, Option
from fwp_fairseq.tables.render import markdown
from fwp_fairseq.tables.table import Grid

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/flags.md", "docs/layers.md")


def _values(option: Option) -> str:
    if option.values is None:
        return "a whole number"
    named = (f"`{value}`" + (" (default)" if value == option.default else "") for value in option.values)
    return ", ".join(f"{name}: {what}" for name, what in zip(named, option.values.values(), strict=True))


def flag_table() -> Grid:
    """The options as flags."""
    rows = []
    for option in OPTIONS.values():
        flags = [f"`{option.flag()}`"] if option.is_common else [f"`{option.flag(option.sites[0])}`"]
        if option.is_common and option.per_site:
            flags.append(f"`{option.flag('SITE')}`")
        rows.append([option.title, ", ".join(flags), _values(option), option.help])
    return Grid(["option", "flags", "values", "what it does"], rows, "")


def argument_table() -> Grid:
    """The options as arguments of the layers, which have no softmax attention."""
    rows = []
    for option in OPTIONS.values():
        values = option.values and {value: what for value, what in option.values.items() if value != "softmax"}
        own = option._replace(values=values) if option.name == "feature_map" else option
        rows.append([f"`{option.name}`", _values(own), option.help])
    return Grid(["argument", "values", "what it does"], rows, "")


TABLES = {"flags": flag_table, "arguments": argument_table}


def with_tables(text: str) -> str:
    """The text of a page with every table as it is made now."""

    def made(match: re.Match) -> str:
        name = match[1]
        return f"<!-- options:{name} -->\n{markdown(TABLES[name]())}\n<!-- /options:{name} -->"

    return re.sub(r"<!-- options:(\w+) -->\n.*?<!-- /options:\1 -->", made, text, flags=re.S)


def main() -> None:
    for page in PAGES:
        file = ROOT / page
        file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

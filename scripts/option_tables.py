"""Writes the tables of attention options into the documentation: python -m scripts.option_tables

They are made from ``fwp_fairseq/options.py`` and stand between HTML comments; tests/test_options.py checks them.
"""

import re
from pathlib import Path

from fwp_fairseq.options import argument_table, flag_table

ROOT = Path(__file__).resolve().parents[1]
TABLES = {"flags": flag_table, "arguments": argument_table}
PAGES = ("docs/flags.md", "docs/layers.md")


def with_tables(text: str) -> str:
    """The text of a page with every table as it is made now."""

    def made(match: re.Match) -> str:
        name = match[1]
        return f"<!-- options:{name} -->\n{TABLES[name]()}\n<!-- /options:{name} -->"

    return re.sub(r"<!-- options:(\w+) -->\n.*?<!-- /options:\1 -->", made, text, flags=re.S)


def main() -> None:
    for page in PAGES:
        file = ROOT / page
        file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Updates the tables in a Markdown file."""

import re

from fwp_fairseq.tables.render import markdown
from fwp_fairseq.tables.table import grid

from .tables import TABLES


def regenerate(text: str, records: list[dict]) -> str:
    """Returns ``text`` with every table made anew from the records.

    Raises ValueError for an unknown table or a marker without its counterpart.
    """
    opened, closed = (re.findall(rf"<!-- {slash}table:(\S+) -->", text) for slash in ("", "/"))
    if opened != closed:
        raise ValueError(f"table markers do not pair up: opened {opened}, closed {closed}")
    for name in opened:
        if name not in TABLES:
            raise ValueError(f"unknown table {name!r}, expected one of {', '.join(TABLES)}")
    return re.sub(
        r"(<!-- table:(\S+) -->\n).*?(<!-- /table:\2 -->)",
        lambda match: f"{match[1]}{markdown(grid(TABLES[match[2]], match[2], records))}\n{match[3]}",
        text,
        flags=re.DOTALL,
    )

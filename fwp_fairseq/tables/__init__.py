"""Tables of results, made from records. A new table is one file and one line in ``_DEFINITIONS``.

Such a file holds ``TABLES``: the name of each of its tables to a :class:`~.table.Table`.
"""

from importlib import import_module

from .table import Table

_DEFINITIONS = (
    "benchmarks",
    "bleu_vs_d_dot",
    "finetune",
    "quickstart",
    "synthetic",
    "trainings",
)

TABLES: dict[str, Table] = {
    name: table for file in _DEFINITIONS for name, table in import_module(f".{file}", __name__).TABLES.items()
}

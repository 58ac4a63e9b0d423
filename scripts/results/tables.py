"""All tables of the repository by name: of the options, of the benchmarks, and of every experiment's table.py."""

from importlib import import_module

from fwp_fairseq.tables.table import Table
from scripts.experiments.__main__ import NAMES

from . import benchmarks, options

_FILES = (options, benchmarks, *(import_module(f"scripts.experiments.{name}.table") for name in NAMES))
TABLES: dict[str, Table] = {name: table for file in _FILES for name, table in file.TABLES.items()}

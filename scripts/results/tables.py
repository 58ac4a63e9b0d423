"""All tables of the repository by name. To add tables, write a module with ``TABLES`` and list it here."""

from fwp_fairseq.tables.table import Table

from . import (
    benchmarks,
    bleu_by_site,
    bleu_iwslt14,
    bleu_vs_d_dot,
    finetune,
    language_models,
    long_runs,
    parity,
    quickstart,
    synthetic,
)

_FILES = (
    benchmarks,
    bleu_vs_d_dot,
    bleu_iwslt14,
    bleu_by_site,
    finetune,
    language_models,
    long_runs,
    parity,
    quickstart,
    synthetic,
)
TABLES: dict[str, Table] = {name: table for file in _FILES for name, table in file.TABLES.items()}

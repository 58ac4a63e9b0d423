"""Every table of the repository by its name. A new one is a file with ``TABLES``, named here."""

from fwp_fairseq.tables.table import Table

from . import benchmarks, bleu_vs_d_dot, finetune, quickstart, synthetic

TABLES: dict[str, Table] = {
    name: table
    for file in (benchmarks, bleu_vs_d_dot, finetune, quickstart, synthetic)
    for name, table in file.TABLES.items()
}

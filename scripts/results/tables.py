"""All tables of the repository by name. To add tables, write a module with ``TABLES`` and list it here."""

from fwp_fairseq.tables.table import Table
from scripts.experiments.bleu_vs_d_dot import table as bleu_vs_d_dot
from scripts.experiments.by_site import table as by_site
from scripts.experiments.conversion import table as conversion
from scripts.experiments.documents import table as documents
from scripts.experiments.language_models import table as language_models
from scripts.experiments.quickstart import table as quickstart
from scripts.experiments.state_tracking import table as state_tracking
from scripts.experiments.synthetic import table as synthetic

from . import benchmarks, long_runs

_FILES = (
    benchmarks,
    long_runs,
    bleu_vs_d_dot,
    by_site,
    conversion,
    documents,
    language_models,
    quickstart,
    state_tracking,
    synthetic,
)
TABLES: dict[str, Table] = {name: table for file in _FILES for name, table in file.TABLES.items()}

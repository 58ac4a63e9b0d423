"""Tasks; importing a module of this package registers them with fairseq."""

from .. import compat  # noqa: F401  (before any task: its effects are what the tasks need)

"""Models and architectures; importing a module of this package registers them with fairseq."""

from .. import compat  # noqa: F401  (before any model: its effects are what the models need)

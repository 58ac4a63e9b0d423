"""Models and architectures; importing a module of this package registers them with fairseq."""

from .. import mends  # noqa: F401  (imported before any model, because importing it mends fairseq)

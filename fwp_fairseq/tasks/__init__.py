"""Tasks; importing a module of this package registers the tasks and the criterions with fairseq."""

from .. import (
    criterions,  # noqa: F401  (fairseq imports the tasks and models of a user directory, and nothing else)
    mends,  # noqa: F401  (its effects are what the tasks need)
)

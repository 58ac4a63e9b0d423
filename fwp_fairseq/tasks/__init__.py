"""Tasks; importing a module of this package registers them with fairseq, and the criterions too."""

from .. import (
    criterions,  # noqa: F401  (fairseq imports the tasks and models of a user directory, and nothing else)
    mends,  # noqa: F401  (its effects are what the tasks need)
)

"""Tasks; importing a module of this package registers them with fairseq, and the criterions too."""

from .. import (
    compat,  # noqa: F401  (before any task: its effects are what the tasks need)
    criterions,  # noqa: F401  (fairseq imports the tasks and models of a user directory, and nothing else)
)

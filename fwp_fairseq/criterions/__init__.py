"""Criterions; importing this package registers them with fairseq, which looks only for tasks and models by itself."""

from .. import mends  # noqa: F401  (before any criterion: its effects are what they need)
from . import attention_transfer  # noqa: F401

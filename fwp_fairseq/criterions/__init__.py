"""Criterions; importing this package registers them with fairseq, which looks only for tasks and models by itself."""

from .. import mends  # noqa: F401  (first, because criterions need what it mends)
from . import attention_transfer  # noqa: F401

"""What fairseq needs to run on today's torch, numpy and omegaconf; what we mend of its behaviour is in ``mends``.

It is imported before the mends for its effects, and exports nothing.
"""

from . import numpy_names, safe_globals, startup_warnings  # noqa: F401

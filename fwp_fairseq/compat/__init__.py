"""Lets fairseq run on current torch, numpy and omegaconf; ``mends`` repairs its behaviour.

It is imported before the mends for its effects, and exports nothing.
"""

from . import numpy_names, safe_globals, startup_warnings  # noqa: F401

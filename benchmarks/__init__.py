"""Benchmarks: every file here with a ``main`` is run by ``python -m benchmarks.NAME``; see docs/kernels.md."""

import os

# Set before torch starts its threads. On shared cores, long spinning of waiting threads costs more than it saves.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

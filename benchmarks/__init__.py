"""Programs that measure: ``python -m benchmarks.attention``, ``.training``, ``.decoding``; see docs/kernels.md."""

import os

# Read when torch loads its threads: spinning for long while waiting costs more than it saves when cores are shared.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

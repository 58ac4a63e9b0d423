"""Mends faults of fairseq that every user meets, in whatever model is trained or opened with this plugin.

Each file says what the user sees (Symptom), why (Cause) and which test brings it about (Test), and has one function
``mend()``. docs/reliability.md has a table of them. Importing this package applies all of them, and exports nothing.
"""

from .. import compat  # noqa: F401  (fairseq has to run before it can be mended)
from . import (
    archives,
    bfloat16,
    binarised_data,
    context_window,
    data_position,
    dictionaries,
    divergence,
    early_stopping,
    hydra_architectures,
    layers_to_keep,
    lengths,
    literals,
    loading,
    logs,
    moving_average,
    multilingual_task,
    overflow,
    prepared_models,
    processes,
    resumed_counters,
    resuming,
    saving,
    text_encoding,
)

# In this order: of two that wrap the same function of fairseq, the later one is the outer one.
MENDS = (
    literals,
    saving,
    loading,
    archives,
    layers_to_keep,
    binarised_data,
    text_encoding,
    dictionaries,
    lengths,
    early_stopping,
    resuming,
    resumed_counters,
    context_window,
    data_position,
    divergence,
    overflow,
    moving_average,
    multilingual_task,
    hydra_architectures,
    prepared_models,
    processes,
    bfloat16,
    logs,
)

for _file in MENDS:
    _file.mend()

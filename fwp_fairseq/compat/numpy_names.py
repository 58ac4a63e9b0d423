"""numpy >= 1.24 and 2 dropped names that fairseq still uses."""

import types

import numpy as np
from fairseq.data import bucket_pad_length_dataset, data_utils


def restore() -> None:
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)
    for name, alias in {"int": int, "float": float, "bool": bool, "object": object}.items():
        if name not in np.__dict__:
            setattr(np, name, alias)

    def get_buckets(sizes, num_buckets):
        # numpy 2 has no percentile(interpolation=) any more; --num-batch-buckets needs it.
        return np.unique(np.percentile(sizes, np.linspace(0, 100, num_buckets + 1), method="lower")[1:])

    data_utils.get_buckets = bucket_pad_length_dataset.get_buckets = get_buckets

"""Gives fairseq the names that it still uses and that numpy dropped in 1.24 and 2.

fairseq was written for numpy 1.20: "module 'numpy' has no attribute 'float'".
"""

import types

import numpy as np
from fairseq.data import bucket_pad_length_dataset, data_utils, language_pair_dataset, token_block_dataset
from fairseq.modules import dynamic_crf_layer

# numpy as these files of fairseq see it. numpy itself stays as it is for everybody else.
numpy = types.ModuleType("numpy")
numpy.__getattr__ = lambda name: getattr(np, name)
vars(numpy).update({"int": int, "float": float, "compat": types.SimpleNamespace(long=int)})
for module in (data_utils, language_pair_dataset, token_block_dataset, dynamic_crf_layer):
    module.np = numpy


def get_buckets(sizes, num_buckets):
    # fairseq's version, for --num-batch-buckets, uses percentile(interpolation=), which numpy 2 no longer has.
    return np.unique(np.percentile(sizes, np.linspace(0, 100, num_buckets + 1), method="lower")[1:])


data_utils.get_buckets = bucket_pad_length_dataset.get_buckets = get_buckets

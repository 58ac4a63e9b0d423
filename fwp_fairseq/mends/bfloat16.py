"""Trains with --bf16 and --memory-efficient-bf16 where there is no TPU, in one process or in several.

fairseq treats --bf16 as if it were --tpu.
"""

import importlib.util

from fairseq.distributed import utils as distributed_utils

from . import around


@around(distributed_utils, "call_main")
def call_without_tpu(call, cfg, main, **keywords):
    if cfg.common.bf16 and importlib.util.find_spec("torch_xla") is None:
        for section in (cfg.common, cfg.distributed_training, cfg.model):
            if hasattr(section, "tpu"):
                section.tpu = False
    return call(cfg, main, **keywords)

"""--bf16 of fairseq's own models without a TPU."""

import pytest

pytest.importorskip("fairseq")

from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

import fwp_fairseq.mends  # noqa: F401


@pytest.mark.parametrize("bf16", [True, False])
def test_a_tpu_is_used_only_if_there_is_one(bf16):
    cfg = OmegaConf.structured(FairseqConfig())
    cfg.model = {"tpu": bf16}
    cfg.common.bf16 = cfg.common.tpu = bf16
    cfg.distributed_training.distributed_world_size = 1
    seen = []
    distributed_utils.call_main(cfg, lambda cfg: seen.extend((cfg.common.tpu, cfg.model.tpu)))
    assert seen == [False, False]

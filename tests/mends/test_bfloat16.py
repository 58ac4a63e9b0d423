"""--bf16 without a TPU."""

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils

from fwp_fairseq.cli.plugin import import_plugin


@pytest.mark.parametrize("flags", [["--bf16"], ["--memory-efficient-bf16"], []], ids=["bf16", "efficient", "float32"])
@pytest.mark.parametrize("arch", ["transformer", "fwp_transformer"])
def test_a_tpu_is_used_only_if_there_is_one(arch, flags):
    """Neither by the trainer, nor by what divides the work among processes, nor by the model."""
    import_plugin()
    words = ["data", "--task", "translation", "--arch", arch, "--distributed-world-size", "1", *flags]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    parts = []
    distributed_utils.call_main(cfg, lambda cfg: parts.extend((cfg.common, cfg.distributed_training, cfg.model)))
    assert len(parts) == 3 and not any(getattr(part, "tpu", False) for part in parts)

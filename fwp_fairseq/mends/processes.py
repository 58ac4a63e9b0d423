"""Mends training in several processes: launchers are obeyed, CPUs work, and errors name a lost process.

fairseq counts GPUs where it should count processes, and passes on torch's error messages.
"""

import logging
import os
import re
import sys

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model

from . import around, program

logger = logging.getLogger(__name__)

_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_UNUSED = "Expected to have finished reduction in the prior iteration"
_INTERRUPTED = 130  # the exit status of shells after Ctrl-C
_DEAD_WORKER = "DataLoader worker"
_LOST = re.compile(r"Connection (closed|reset) by (remote )?peer|Broken pipe|Connection refused|Socket closed")


@around(distributed_utils, "infer_init_method")
def infer_or_follow(infer, cfg, force_distributed: bool = False):
    """Takes the number of processes from torchrun.

    By default fairseq's --distributed-world-size is the number of GPUs, or 1 on a CPU. If it is 1, fairseq ignores
    torchrun's variables, and the processes become separate trainings that overwrite each other's checkpoints.
    """
    alone = cfg.distributed_init_method is not None or cfg.tpu or any(name not in os.environ for name in _TORCHRUN)
    if not alone:
        cfg.distributed_world_size = int(os.environ["WORLD_SIZE"])
    return infer(cfg, force_distributed)


@around(distributed_utils, "_infer_torch_distributed_launch_init")
def launched_without_gpus(launched, cfg):
    if torch.cuda.device_count():
        return launched(cfg)
    cfg.distributed_init_method = "env://"
    cfg.distributed_world_size, cfg.distributed_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    cfg.device_id = 0  # fairseq divides by the number of GPUs here
    cfg.distributed_no_spawn = True


@around(distributed_utils, "_infer_slurm_init")
def slurm_without_gpus(slurm, cfg, *arguments):
    result = slurm(cfg, *arguments)
    if not torch.cuda.device_count():
        cfg.device_id = 0  # otherwise fairseq selects the GPU of the process's number
    return result


@around(distributed_utils, "distributed_init")
def init_on_a_cpu(init, cfg):
    on_cpu = hasattr(cfg, "common") and (cfg.common.cpu or not torch.cuda.is_available())
    if on_cpu and cfg.distributed_training.distributed_backend == "nccl":
        cfg.distributed_training.distributed_backend = "gloo"
        logger.info("--distributed-backend gloo: nccl needs GPUs")
    return init(cfg)


@around(distributed_fairseq_model, "DistributedDataParallel")
def ddp_where_the_model_is(ddp, module, device_ids=None, output_device=None, **keywords):
    if next(module.parameters()).device.type == "cpu":
        device_ids = output_device = None
    return ddp(module, device_ids=device_ids, output_device=output_device, **keywords)


@around(distributed_utils, "call_main")
def call_or_say_why(call, cfg, main, **keywords):
    """Replaces torch's errors about a lost process and about unused parameters by short ones that say what to do.

    When another process of the training is lost, a process fails at the next exchange with an error about a socket.
    The same can happen when a process of --num-workers is lost. For an unused parameter, torch prints a page of text.
    """
    try:
        return call(cfg, main, **keywords)
    except KeyboardInterrupt:
        continues = "; the same command continues from the last checkpoint" if program("train") else ""
        logger.warning(f"interrupted{continues}")
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # what reads our output is gone, as in `fairseq-interactive ... | head`
        raise
    except (RuntimeError, ConnectionError, EOFError) as error:
        if not isinstance(error, RuntimeError) or _DEAD_WORKER in str(error):
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RuntimeError(
                f"a process that reads data for this one died ({reason}): was it killed for lack of memory? "
                "--num-workers 0 needs no such process. A training that is started again continues from its last "
                "checkpoint"
            ) from error
        rank, lost = cfg.distributed_training.distributed_rank, _LOST.search(str(error))
        if _UNUSED in str(error):
            raise RuntimeError(
                f"rank {rank}: parameters took no part in an update (layer drop?); with --ddp-backend pytorch_ddp "
                "that needs --find-unused-parameters"
            ) from error
        if lost is None:
            raise
        raise RuntimeError(
            f"rank {rank} lost another process of this training ({lost[0]}): see the last output of that process. "
            "When all processes are started again, the training continues from its last checkpoint"
        ) from error

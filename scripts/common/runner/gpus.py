"""Distributes the GPUs of a machine over the runs of an experiment."""

import os

from ..errors import RecipeError
from .call import Call

Gpus = tuple[int | str, ...]  # by number or by name; none for the CPU


def chosen(call: Call) -> Gpus:
    """Returns the GPUs that --gpus names, or without it those that torch sees, by their names outside; none with --cpu.

    Raises RecipeError if there are none, the preset takes long ``on_a_cpu``, and --cpu is not set.
    """
    if call.gpus is not None or call.cpu:
        return call.gpus or ()
    import torch

    named, preset = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","), call.preset
    count = torch.cuda.device_count()
    visible = tuple(named[:count]) if any(named) else tuple(range(count))
    if preset.on_a_cpu and not visible:
        raise RecipeError(
            f"no GPU is visible, and --preset {preset.name} takes {preset.on_a_cpu} on a CPU: "
            "set --gpus 0,1,..., or --cpu"
        )
    return visible


def shares(gpus: Gpus, jobs: int, distributed: bool) -> list[Gpus]:
    """Distributes GPUs over `jobs` runs that go on at the same time; returns the GPUs of each.

    A GPU is shared only if there are fewer GPUs than runs. A run that is not `distributed` gets at most one.
    """
    if jobs >= len(gpus) or not distributed:
        return [gpus[slot % len(gpus) : slot % len(gpus) + 1] if gpus else () for slot in range(jobs)]
    return [gpus[slot::jobs] for slot in range(jobs)]

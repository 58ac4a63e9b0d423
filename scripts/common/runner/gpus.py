"""Distributes the GPUs of a machine over the runs of a sweep."""

from __future__ import annotations

from ..folder import RecipeError


def chosen(options) -> tuple[int, ...]:
    """Returns the GPUs that --gpus names, or without it those that torch sees; none with --cpu."""
    if options.gpus is not None:
        return options.gpus
    if options.cpu:
        return ()
    import torch

    return tuple(range(torch.cuda.device_count()))


def require(options, gpus: tuple[int, ...]) -> None:
    """Raises RecipeError if the preset takes long ``on_a_cpu``, there is no GPU, and --cpu is not set."""
    preset = options.preset
    if preset.on_a_cpu and not gpus and not options.cpu:
        raise RecipeError(
            f"no GPU is visible, and --preset {preset.name} takes {preset.on_a_cpu} on a CPU: "
            "set --gpus 0,1,..., or --cpu"
        )


def visible(gpus: tuple[int, ...]) -> dict[str, str]:
    """Returns the environment variable that shows a process these GPUs only; nothing for the CPU."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}


def shares(gpus: tuple[int, ...], jobs: int, distributed: bool) -> list[tuple[int, ...]]:
    """Distributes GPUs over `jobs` runs that go on at the same time; returns the GPUs of each.

    A GPU is shared only if there are fewer GPUs than runs. A run that is not `distributed` gets at most one.
    """
    if jobs >= len(gpus) or not distributed:
        return [gpus[slot % len(gpus) : slot % len(gpus) + 1] if gpus else () for slot in range(jobs)]
    return [gpus[slot::jobs] for slot in range(jobs)]

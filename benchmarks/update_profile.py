"""Finds where the time of an update goes, by torch.profiler: into attention, and into waiting of the GPU."""

import re
import time
from collections.abc import Callable, Iterable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# Kernels of a GPU, and on a CPU operators, that compute attention forward or backward: ours, and PyTorch's for softmax
# attention. Projections are not among them.
_ATTENTION = {
    "cuda": re.compile(r"\bfwp\b|flash|fmha|sdpa|attention|softmax_warp", re.IGNORECASE),
    "cpu": re.compile(r"^fwp::|scaled_dot_product|_flash_attention|_softmax"),
}


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(intervals):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def measure(update: Callable[[dict], int], samples: list[dict], device: str) -> dict[str, float | None]:
    """Profiles an update of each batch; returns seconds of an update, means over the batches.

    ``update_seconds`` is wall time, to which profiling adds, and ``attention_seconds`` the time of attention's kernels,
    on a CPU of its operators. On a GPU ``busy_seconds`` is how long it works on anything, and ``waiting_seconds`` how
    long it waits for work; None on a CPU.
    """
    on_gpu = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiled:
        start = time.perf_counter()
        for sample in samples:
            update(sample)
        if on_gpu:
            torch.cuda.synchronize()
        used = time.perf_counter() - start
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    # A range that the program names covers the waiting between its kernels.
    events = [
        event
        for event in profiled.events()
        if event.device_type == kind and not getattr(event, "is_user_annotation", False)
    ]
    attention = [event for event in events if _ATTENTION[device].search(event.name)]
    # Microseconds. Of operators that call each other, the union counts once.
    spent = _covered((event.time_range.start, event.time_range.end) for event in attention) / 1e6
    busy = _covered((event.time_range.start, event.time_range.end) for event in events) / 1e6 if on_gpu else None
    count = len(samples)
    return {
        "update_seconds": used / count,
        "attention_seconds": spent / count,
        "busy_seconds": None if busy is None else busy / count,
        "waiting_seconds": None if busy is None else max(0.0, used - busy) / count,
    }

"""Runs the compiled CPU kernels of every instruction set that this processor has, in one process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fwp_fairseq import _extension


def usable() -> list[str]:
    """The instruction sets with their own float32 and float64 kernels, lowest first; empty without compiled kernels."""
    if not _extension.status().cpu:
        return []
    known = ["default", "avx2", "avx512"]
    return known[: known.index(torch.ops.fwp.cpu_capability()) + 1]


@contextmanager
def chosen(name: str) -> Iterator[None]:
    """Makes calls within the block run with this instruction set."""
    before = torch.ops.fwp.cpu_capability()
    torch.ops.fwp.choose_cpu_capability(name)
    try:
        yield
    finally:
        torch.ops.fwp.choose_cpu_capability(before)


def on_each(compute: Callable) -> dict:
    """Returns the results of ``compute`` with each instruction set, by its name."""
    found = {}
    for name in usable():
        with chosen(name):
            found[name] = compute()
    return found

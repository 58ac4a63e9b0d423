"""Measures a case of benchmarks.attention: errors first, then the times of all implementations that are right."""

import torch

from . import gate
from .cases import WIDTH, Case
from .clock import Call, Calls, Times, fastest
from .implementations import Implementation, inputs, with_fastest_softmax

# Total size of the inputs of all calls of a CUDA graph: several times the 50 MB cache of an H100 or H200.
_GRAPH_BYTES, _MOST_COPIES = 256 << 20, 64


def _copies(case: Case, device: str) -> int:
    if device == "cpu":
        return 1
    size = case.rows * case.length * 3 * WIDTH * getattr(torch, case.dtype).itemsize
    return max(1, min(_MOST_COPIES, _GRAPH_BYTES // size))


def _call(implementation: Implementation, case: Case, device: str, seed: int) -> Call:
    run, tensors, _ = implementation.prepare(case, inputs(case, device, seed))
    if case.part == "forward":
        return Call(lambda: run(**tensors))
    grad_out = torch.ones_like(tensors["v"])
    tensors = {name: y.detach().requires_grad_() for name, y in tensors.items()}
    return Call(lambda: torch.autograd.grad(run(**tensors), list(tensors.values()), grad_out))


def measure(case: Case, device: str, seconds: float, implementations: dict[str, Implementation]) -> dict:
    """Returns ``seconds``, ``clocks``, ``errors`` and the reasons of those not timed, ``refused``, each by name.

    On a GPU the fastest of PyTorch's kernels for softmax attention is ``softmax``, too; ``softmax_kernel`` names it.
    """
    errors, refused = {}, {}
    for name, implementation in implementations.items():
        try:
            errors[name] = gate.worst(gate.check(name, implementation, case, device))
        except gate.Refused as error:
            refused[name] = str(error)
    timed = Times({}, {})
    if "ours" in errors:
        with torch.set_grad_enabled(case.part == "both"):
            copies = range(_copies(case, device))
            calls: Calls = {name: [_call(implementations[name], case, device, i) for i in copies] for name in errors}
            timed = fastest(calls, device, seconds, [name for name in errors if implementations[name].eager])
    return {**with_fastest_softmax(timed), "errors": errors, "refused": refused}

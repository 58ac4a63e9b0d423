"""Checks values and gradients of an implementation against the reference in float64 before it is timed."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tests.tolerances import CUDA, LARGEST, Tolerance

from .cases import Case
from .implementations import Implementation, Prepared, inputs

# Permitted errors of other implementations, which only have to compute the same function, as in LARGEST.
PEERS = {"float32": Tolerance(1e-4, 1e-3), "bfloat16": Tolerance(3e-2, 1e-1), "float16": Tolerance(1e-2, 3e-2)}


class Refused(Exception):
    """The implementation must not be timed; the message tells why."""


class Errors(NamedTuple):
    """Two measures of an error, each over the same measure of the exact numbers: root mean square, and the largest."""

    rms: float
    largest: float


def worst(errors: dict[str, Errors]) -> dict[str, float]:
    """Returns the larger of each kind of error, for a record."""
    return {kind: max(getattr(error, kind) for error in errors.values()) for kind in Errors._fields}


def gradients(run, tensors: dict[str, Tensor], grad_out: Tensor) -> dict[str, Tensor]:
    """Returns ``out`` of run(**tensors) and the gradients of all tensors."""
    tensors = {name: y.detach().requires_grad_() for name, y in tensors.items()}
    out = run(**tensors)
    grads = torch.autograd.grad(out, list(tensors.values()), grad_out)
    return {"out": out.detach(), **dict(zip(tensors, grads, strict=True))}


def largest(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def rms(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).square().mean() / expected.square().mean()).sqrt().item()


def _swap(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def check(name: str, implementation: Implementation, case: Case, device: str) -> dict[str, Errors]:
    """Returns the errors of ``out`` and of each gradient on one batch row of the case.

    Raises Refused if an error is larger than permitted or NaN, or if the implementation cannot run here or fails.
    """
    if reason := implementation.obstacle(case, device):
        raise Refused(reason)
    small = case.small()
    try:
        prepared = implementation.prepare(small, inputs(small, device))
        generator = torch.Generator().manual_seed(1)
        grad_out = torch.randn(prepared.tensors["v"].shape, generator=generator).to(prepared.tensors["v"])
        actual = gradients(prepared.run, prepared.tensors, grad_out)
    except Exception as error:
        raise Refused(f"{name}, {case.name}: {type(error).__name__}: {str(error)[:200]}") from error
    actual = {key: (_swap(y) if prepared.heads_first else y).double().cpu() for key, y in actual.items()}
    expected = _expected(implementation, small, prepared, grad_out)
    by_rms = implementation.ours and device == "cuda"
    tolerance = (CUDA if by_rms else LARGEST if implementation.ours else PEERS)[case.dtype]
    errors = {}
    for key, exact in expected.items():
        errors[key] = Errors(rms(actual[key], exact), largest(actual[key], exact))
        error = errors[key].rms if by_rms else errors[key].largest
        limit = tolerance.values if key == "out" else tolerance.gradients
        if by_rms:
            limit = math.hypot(limit, rms(exact.to(getattr(torch, case.dtype)).double(), exact))
        if not error <= limit:
            what = key if key == "out" else f"gradient of {key}"
            raise Refused(f"{name}, {case.name}: error of {what} {error:.1e}, allowed {limit:.1e}")
    return errors


def _expected(implementation: Implementation, case: Case, prepared: Prepared, grad_out: Tensor) -> dict[str, Tensor]:
    exact = {name: y.double().cpu() for name, y in prepared.tensors.items()}
    grad_out = grad_out.double().cpu()
    if prepared.heads_first:
        exact, grad_out = {name: _swap(y) for name, y in exact.items()}, _swap(grad_out)
    question = implementation.oracle, replace(case, part="both"), [*exact.values(), grad_out]
    if not _last or _last[0][:2] != question[:2] or not all(map(torch.equal, _last[0][2], question[2])):
        _last[:] = [question, gradients(lambda **x: implementation.oracle(case, **x), exact, grad_out)]
    return _last[1]


# The last inputs and results of the reference. Successive cases and implementations often need the same results, and a
# long case takes seconds.
_last: list = []

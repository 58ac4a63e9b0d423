"""Decides which calls the CUDA kernels of ``csrc/cuda`` can serve, and in which type they take their inputs."""

import dataclasses

import torch
from torch import Tensor

from .. import _extension
from .._constant import constant
from .._cuda_library import has_kernel as _has_kernel
from .._cuda_library import index as _index
from .._cuda_library import refusal as _refusal
from .call import Call

# FWP_CUDA_RULES and FWP_CUDA_MAPS of csrc/cuda/kernels/call.h
RULES = ("sum", "delta", "gated", "gated_delta")
MAPS = ("identity", "elu", "relu", "exp", "dpfp", "favor")
_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def served_map(feature_map: str, device: torch.device) -> str:
    """The map that the device's kernels are called with: CUDA's take the features of a map that they do not know."""
    return feature_map if device.type != "cuda" or feature_map in MAPS else "identity"


def with_features(call: Call, feature_map: str) -> Call:
    """The call that the kernels are given; ``feature_map`` is the name of its map."""
    if served_map(feature_map, call.v.device) == feature_map:
        return call
    phi_q, phi_k = (call.features(x.transpose(1, 2)).transpose(1, 2) for x in (call.q, call.k))
    return dataclasses.replace(call, q=phi_q, k=phi_k, feature_map=None)


def input_type(call: Call) -> torch.dtype:
    """The type in which q, k and v are passed to the kernels: their own if they share one, else float32 or wider."""
    types = {x.dtype for x in (call.q, call.k, call.v)}
    return call.v.dtype if len(types) == 1 else call.dtype


@constant
def _has(operator: str) -> bool:
    return hasattr(torch.ops.fwp, operator)


def _missing() -> list[str]:
    """Says, as a reason, that there is no CUDA library."""
    status = _extension.status()
    return [] if status.cuda else [f"CUDA kernels {status.reasons['cuda']}"]


def _reasons(rule: str, dtype: torch.dtype) -> list[str]:
    """The reasons against a call that apply to the operators and to decoding alike."""
    if missing := _missing():
        return missing
    reasons = [] if rule in RULES else [f"the CUDA kernels do not know the {rule} rule"]
    return reasons if dtype in _TYPES else [*reasons, f"the CUDA kernels do not compute in {dtype}"]


def unsupported_reasons(call: Call, feature_map: str) -> list[str]:
    """Why the CUDA library cannot serve this call; empty when it can. ``feature_map`` is the name of the map."""
    reasons = _reasons(call.rule, call.v.dtype)
    if not reasons and torch.cuda.is_available():
        given = (call.q, call.k, call.v, call.beta, call.alpha, *(call.initial_state or ()))
        differentiated = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
        phi, d_key, taken = call.feature_map, call.k.shape[-1], input_type(call)
        d_dot, served = d_key if phi is None else phi.d_dot, served_map(feature_map, call.v.device)
        if served != feature_map:
            d_key, taken = d_dot, call.dtype
        refusal = _refusal(
            "cuda_refusal", _index(call.v.device), call.rule, taken, served, d_key, call.v.shape[-1], d_dot,
            max(call.q.shape[1], call.k.shape[1]), call.return_state or call.initial_state is not None, differentiated,
        )  # fmt: skip
        reasons += [refusal] if refusal else []
    return reasons


def decoding_unsupported_reasons(rule: str, x: Tensor, feature_map: str, d_dot: int) -> list[str]:
    """The same of decoding with this rule and keys like x."""
    reasons = _reasons(rule, x.dtype)
    if not reasons and torch.cuda.is_available():
        served = served_map(feature_map, x.device)
        d_key = x.shape[-1] if served == feature_map else d_dot
        refusal = _refusal("cuda_decode_refusal", _index(x.device), x.dtype, served, d_key, d_dot)
        reasons += [refusal] if refusal else []
    return reasons


def recurrence_unsupported_reasons(x: Tensor) -> list[str]:
    """The same of the recurrences with rows like x, (B, L, H, d)."""
    if missing := _missing():
        return missing
    if not _has("cuda_recurrence_refusal"):
        return ["the CUDA library was built before it had a recurrence: build it again"]
    if x.dtype != torch.float32:  # half precision has become float32
        return [f"the CUDA kernels of the recurrence do not compute in {x.dtype}"]
    if not torch.cuda.is_available():
        return []
    refusal = _refusal("cuda_recurrence_refusal", _index(x.device), x.shape[-1])
    return [refusal] if refusal else []


def missing_kernel(operator: str, what: str) -> list[str]:
    """Says, as a reason, that a CUDA library that has a recurrence is older than the kernels of this operator."""
    return [] if _has_kernel(operator) else [f"the CUDA library was built before it had {what}: build it again"]

"""Decides which calls the CUDA kernels of ``csrc/cuda`` can serve, and in which type they take their inputs."""

import torch
from torch import Tensor

from .. import _extension
from .._cuda_library import index as _index
from .._cuda_library import refusal as _refusal
from .call import Call

_LONGEST_BLOCK = 128  # of decoding, in positions


def input_type(call: Call) -> torch.dtype:
    """The type in which q, k and v are passed to the kernels: their own if they share one, else float32 or wider."""
    types = {x.dtype for x in (call.q, call.k, call.v)}
    return call.v.dtype if len(types) == 1 else call.dtype


def _missing() -> list[str]:
    """Says, as a reason, that there is no CUDA library."""
    status = _extension.status()
    return [] if status.cuda else [f"CUDA kernels {status.reasons['cuda']}"]


def _is_available() -> bool:
    return torch.cuda.is_available()


def _refused(operator: str, device: torch.device, *sizes) -> list[str]:
    """Why the device refuses these sizes, as a reason; none of them is a length, which may be symbolic."""
    reason = _refusal(operator, _index(device), *sizes) if _is_available() else ""
    return [reason] if reason else []


def unsupported_reasons(call: Call) -> list[str]:
    """Why the CUDA library cannot serve this call; empty when it can.

    The kernels compute with 16 bits of mantissa. That is more than half precision has, also where q and k are features
    in float32 that belong to such a model, and less than a call in float32 asks for.
    """
    if missing := _missing():
        return missing
    if call.v.dtype not in (torch.float16, torch.bfloat16):
        return [f"the CUDA kernels are for half precision and do not compute in {call.v.dtype}"]
    phi, d_key = call.feature_map, call.k.shape[-1]
    return _refused("cuda_refusal", call.v.device, call.rule, d_key, d_key if phi is None else phi.d_dot)


def decoding_unsupported_reasons(x: Tensor, d_dot: int) -> list[str]:
    """Why the CUDA kernels cannot decode with keys like x; empty if they can."""
    if missing := _missing():
        return missing
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return [f"the CUDA kernels do not compute in {x.dtype}"]
    return _refused("cuda_decode_refusal", x.device, x.shape[-1], d_dot, _LONGEST_BLOCK)


def recurrence_unsupported_reasons(x: Tensor) -> list[str]:
    """Why they cannot compute a recurrence of rows like x, (B, L, H, d); empty if they can."""
    if missing := _missing():
        return missing
    if x.dtype != torch.float32:  # half precision has become float32
        return [f"the CUDA kernels of the recurrence do not compute in {x.dtype}"]
    return _refused("cuda_recurrence_refusal", x.device, x.shape[-1])

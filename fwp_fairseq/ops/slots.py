"""Attention through slots in one compiled operator, which :mod:`fwp_fairseq.layers.slot_memory` defines.

It computes out of (q, k, v) as that module's equations say, with the shares phi of :class:`.feature_maps.slots.Slots`,
on CPUs, in float32 and float64. For the backward nothing is kept but its inputs.
"""

import torch
from torch import Tensor

from .. import _transforms
from .backends import count
from .native import cpu_operator_reasons, new_rows, register


def compiled_reasons(device: torch.device, dtype: torch.dtype) -> list[str]:
    """Why the operator cannot serve tensors there and of this type; empty when it can."""
    return cpu_operator_reasons("read_slots", "slots", device, dtype)


def read_slots(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, sharpness: Tensor, key_padding_mask: Tensor | None
) -> Tensor:
    """What queries read of a source: (B, T, H, d) of q, of the same shape; k and v (B, S, H, d).

    Args:
        weight: (H, m, d), W_h of :class:`.feature_maps.slots.Slots`, in the type of q.
        sharpness: (H,), its c_h.
        key_padding_mask: (B, S), True at pads; without any token the result is 0.

    Cost per head, with u = min(m, S): 3 S u d multiplications for the slots and 2 T u d for reading.
    """
    count("native", q)
    return torch.ops.fwp.read_slots(q, k, v, weight, sharpness, key_padding_mask)


def _fake(q, *others):
    return new_rows(q, q.shape[3])


def _fake_backward(grad_out, q, k, v, weight, sharpness, key_padding_mask):
    parameters = (x.new_empty(x.shape) for x in (weight, sharpness))
    return *(new_rows(x, x.shape[3]) for x in (q, k, v)), *parameters


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad_out):
    _transforms.refuse_tangents("fwp::read_slots_backward", grad_out)
    return *torch.ops.fwp.read_slots_backward(grad_out, *ctx.saved_tensors), None


if not compiled_reasons(torch.device("cpu"), torch.float32):
    register("read_slots", _fake, _fake_backward, _save, _differentiate)

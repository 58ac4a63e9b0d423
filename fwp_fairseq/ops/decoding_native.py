"""Runs decoding steps with the compiled operators ``torch.ops.fwp.decode`` and ``fold``; defines their fake kernels."""

import torch
from torch import Tensor

from .._operator import FLOATING, UP_TO_SINGLE, Kernel, new_rows
from ..numerics import state_type
from .native import kernel_of, unknown_reasons


def _fake_decode(q, k, v, beta, alpha, key_padding_mask, keys, written, *others):
    return new_rows(q, written.shape[3], written.dtype)


def _fake_fold(
    keys, written, strengths, ancestors, rows, W, z, count, rule, feature_map, d_dot, normalize_output
):  # fmt: skip
    read, heads = ancestors.shape[0], keys.shape[2]
    dtype = state_type(keys.dtype)
    new_z = keys.new_empty((read, heads, d_dot) if normalize_output else 0, dtype=dtype)
    return keys.new_empty(read, heads, d_dot, written.shape[3], dtype=dtype), new_z


LONGEST_BLOCK = 128  # in positions
KERNEL = Kernel(
    "decode", _fake_decode, types=FLOATING, cuda_types=UP_TO_SINGLE, cuda_refusal="cuda_decode_refusal"
)  # fmt: skip
Kernel("fold", _fake_fold)


def unsupported_reasons(decoding, x: Tensor) -> list[str]:
    """Returns the reasons why the compiled library cannot serve this site with rows like x; empty if it can."""
    reasons = KERNEL.unsupported_reasons(x) + unknown_reasons(decoding.rule, decoding.feature_map)
    return reasons or KERNEL.refused(x, x.shape[-1], decoding.d_dot(x), LONGEST_BLOCK)


def cached_types(k: Tensor, v: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Returns the dtypes of cached keys and values: those of k and v on CUDA, one of float32 and float64 on the CPU."""
    if v.device.type == "cuda":
        return k.dtype, v.dtype
    dtype = state_type(torch.promote_types(k.dtype, v.dtype))
    return dtype, dtype


def run(decoding, q, cache, k=None, v=None, beta=None, alpha=None, key_padding_mask=None) -> Tensor:
    """Appends k and v, if given, to the block of a cache, and reads with q (R, T, H, d_key) after each position."""
    phi = decoding.feature_map
    # The schema is in csrc/fast_weights.cpp, the implementation in csrc/common/decode_operators.h.
    return torch.ops.fwp.decode(
        q, k, v, beta, alpha, key_padding_mask, cache.keys, cache.written, cache.strengths, cache.ancestors,
        cache.rows, cache.W, cache.z, cache.projection, cache.count, decoding.rule, kernel_of(phi), decoding.d_dot(q),
        decoding.normalize_features, decoding.normalize_output, decoding.eps,
    )  # fmt: skip


def fold(decoding, cache) -> tuple[Tensor, Tensor | None]:
    """Computes the state (W, z) of each row after the block of a cache; z is None if outputs are not normalised."""
    phi, kept = decoding.feature_map, kernel_of(decoding.feature_map) if decoding.keeps_keys else "identity"
    W, z = torch.ops.fwp.fold(
        cache.keys, cache.written, cache.strengths, cache.ancestors, cache.rows, cache.W, cache.z, cache.count,
        decoding.rule, kept, cache.keys.shape[-1] if phi is None else phi.d_dot, decoding.normalize_output,
    )  # fmt: skip
    return W, z if decoding.normalize_output else None

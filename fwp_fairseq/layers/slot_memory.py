"""Fast weights of slots, which are read through a softmax.

Keys k_j and values v_j are written by the sum rule with the features phi of :class:`.feature_maps.slots.Slots`, which
say how much of position j goes into each slot s:

    W = sum_j phi(k_j) [k_j; v_j]^T        z = sum_j phi(k_j)

A slot so holds the mean K_s of its keys, the mean V_s of its values and their number z_s, and a query reads

    y = sum_s a_s V_s        a = softmax_s(q . K_s / sqrt(d_key) + log z_s)

This is attention with bounded memory (Peng et al. 2022), to which log z_s is added: z_s equal keys in a slot then
count as much as they do in softmax attention (as in Bolya et al. 2023, "Token Merging", proportional attention). Where
every position has a slot for itself, y is what softmax attention computes. In other words, the fast net has two layers,
of which the first is followed by a softmax.

Cost per position and head: 2 m d_key multiplications for a write, and as many for a read. A state holds
m (2 d_key + 1) numbers per head, however long the source.
"""

import math

import torch
from torch import Tensor

from .. import ops
from ..feature_maps.slots import Slots

# Keeps the logarithm of an empty slot finite, and so far below all others that nothing is read from it.
_SMALLEST = 1e-20


def _write(
    phi: Slots, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, state: ops.FastWeights | None, backend: str
) -> ops.FastWeights:
    shares = phi.shares(k, key_padding_mask)
    _, written = ops.sum_rule(
        shares[:, :0],
        shares,
        torch.cat([k, v], -1),
        feature_map=phi.rest(),
        causal=False,
        key_padding_mask=key_padding_mask,
        normalize_output=True,
        initial_state=state,
        return_state=True,
        backend=backend,
    )
    return written


def _attention(q: Tensor, W: Tensor, z: Tensor) -> Tensor:
    """a_s / z_s, (B, H, T, m): the weights of the sums of values in the slots."""
    sums = torch.einsum("bthd,bhmd->bhtm", q.to(W.dtype), W[..., : q.shape[-1]])
    held = z.clamp(min=_SMALLEST).unsqueeze(-2)
    return (sums / (held * math.sqrt(q.shape[-1])) + held.log()).softmax(-1) / held


def attend(
    phi: Slots,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Tensor | None,
    *,
    backend: str,
    initial_state: ops.FastWeights | None = None,
    return_state: bool = False,
) -> tuple[Tensor, ops.FastWeights | None]:
    """Writes k and v on top of a state, and reads with q.

    Args:
        q: (B, T, H, d_key).
        k, v: (B, S, H, d_key); S may be 0 if there is a state.
        key_padding_mask: (B, S), True at pads, which write nothing.
        initial_state: W (B, H, m, 2 d_key) and z (B, H, m); slots are counted from 0 again for what is added to it.

    Returns:
        ``(out, state)``, out (B, T, H, d_key) in the type of v; the state if it is wanted, else None.
    """
    with torch.autocast(q.device.type, enabled=False):
        if k.shape[1] or initial_state is None:
            initial_state = _write(phi, k, v, key_padding_mask, initial_state, backend)
        W, z = state = ops.FastWeights(*initial_state)
        out = torch.einsum("bhtm,bhmd->bthd", _attention(q, W, z), W[..., q.shape[-1] :])
    return out.to(v.dtype), state if return_state else None


def weights(phi: Slots, q: Tensor, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """How much of each position's value every query reads, (H, B, T, S); they sum to 1."""
    with torch.autocast(q.device.type, enabled=False):
        shares = phi.shares(k, key_padding_mask)
        if key_padding_mask is not None:
            shares = shares.masked_fill(key_padding_mask[:, :, None, None], 0)
        W, z = torch.einsum("bshm,bshd->bhmd", shares, k.to(shares.dtype)), shares.sum(1)
        return torch.einsum("bhtm,bshm->hbts", _attention(q, W, z), shares)

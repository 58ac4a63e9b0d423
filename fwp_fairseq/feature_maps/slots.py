"""Assignment of positions to slots."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .feature_map import FeatureMap, widened
from .identity import Identity

# The share of a fresh assignment that goes to other slots than the position's own is about exp(-_SHARPNESS).
_SHARPNESS = 4.0


class Slots(FeatureMap):
    """phi(k_j) = softmax_s(W_h k_j + c_h [s = slot(j)]): the share of position j in each of m slots s; d_dot = m.

    Slots are those of attention with bounded memory (Peng et al. 2022, "ABC: Attention with Bounded-memory Control"),
    with a learned W_h as in their ABC_MLP. What is added here is where a training begins: slot(j) = j in a source of up
    to m positions, and floor(j m / n) in one of n > m, so that neighbours share a slot. A source of n < m positions
    uses the first n slots only; its shares in all others are 0. Queries have no features of this map;
    :mod:`fwp_fairseq.layers.slot_memory` says how they read.

    Cost: min(m, n) d_key multiplications a head and position, and min(m, n) numbers in memory.

    Parameters: ``weight`` (heads, m, d_key), W_h, starts as 0; ``sharpness`` (heads,), c_h, as 4 + log m.
    """

    name = "slots"
    title = "slots read by softmax"
    widths = "any, naturally 64"
    parameters_help: ClassVar = {"slots": "number of slots"}
    per_head = True
    learned = True
    non_negative = True

    def __init__(self, d_key: int, slots: int, heads: int):
        super().__init__(d_key, self.width_for(d_key, slots=slots))
        self.operator_map = Identity(self.d_dot)
        self.weight = nn.Parameter(torch.zeros(heads, slots, d_key))
        self.sharpness = nn.Parameter(torch.full((heads,), _SHARPNESS + math.log(slots)))

    def prepare(self, x: Tensor) -> Tensor:
        shares = self.shares(x.transpose(-3, -2), None).transpose(-3, -2)
        return F.pad(shares, (0, self.d_dot - shares.shape[-1]))

    def rest(self) -> Identity:
        return self.operator_map

    def features(self, x: Tensor) -> Tensor:
        return self.prepare(x)

    def shares(self, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """phi of keys (..., L, heads, d_key) in the slots that L positions use: (..., L, heads, min(m, L)).

        The result is in float32 or wider. Pads, True in a mask (B, L), do not count as positions; what is returned for
        them means nothing.
        """
        with torch.autocast(k.device.type, enabled=False):
            k = widened(k)
            slots = torch.arange(max(min(self.d_dot, k.shape[-3]), 1), device=k.device)
            slot, used = self._slot(k, key_padding_mask)
            logits = torch.einsum("...lhd,hmd->...lhm", k, self.weight[:, : len(slots)].to(k.dtype))
            own = slot[..., None, None] == slots
            logits = torch.where(own, logits + self.sharpness.to(k.dtype).unsqueeze(-1), logits)
            if used is not None:
                logits = logits.masked_fill((slots >= used)[:, None, None], torch.finfo(logits.dtype).min)
            return logits.softmax(-1)

    def _slot(self, k: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """slot(j), and the number of slots in use where that may differ: (L,) and None, or (B, L) and (B, 1)."""
        if key_padding_mask is None:
            n = k.shape[-3]
            return torch.arange(n, device=k.device) * self.d_dot // max(n, self.d_dot), None
        tokens = key_padding_mask.logical_not()
        position, counted = (tokens.cumsum(-1) - 1).clamp(min=0), tokens.sum(-1, keepdim=True)
        return position * self.d_dot // counted.clamp(min=self.d_dot), counted.clamp(min=1)

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        return {"slots": 64}

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 1

"""Assignment of positions to slots."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from .feature_map import FeatureMap, widened
from .identity import Identity

# The share of a fresh assignment that goes to other slots than the position's own is about exp(-_SHARPNESS).
_SHARPNESS = 4.0


class Slots(FeatureMap):
    """phi(k_j) = softmax_s(W_h k_j + c_h [s = slot(j)]): the share of position j in each of m slots s; d_dot = m.

    Slots are those of attention with bounded memory (Peng et al. 2022, "ABC: Attention with Bounded-memory Control"),
    with a learned W_h as in their ABC_MLP. What is added here is where a training begins: slot(j) = j in a source of up
    to m positions, and floor(j m / n) in one of n > m, so that neighbours share a slot. Queries have no features of
    this map; :mod:`fwp_fairseq.layers.slot_memory` says how they read.

    Cost: m d_key multiplications a head and position, and m numbers in memory.

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
        return self.shares(x.transpose(-3, -2), None).transpose(-3, -2)

    def rest(self) -> Identity:
        return self.operator_map

    def features(self, x: Tensor) -> Tensor:
        return self.prepare(x)

    def shares(self, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """phi of keys (..., L, heads, d_key): (..., L, heads, m), float32 or wider.

        Pads, True in a mask (B, L), do not count as positions; what is returned for them means nothing.
        """
        with torch.autocast(k.device.type, enabled=False):
            k = widened(k)
            logits = torch.einsum("...lhd,hmd->...lhm", k, self.weight.to(k.dtype))
            own = self._slot(k, key_padding_mask)[..., None, None] == torch.arange(self.d_dot, device=k.device)
            return torch.where(own, logits + self.sharpness.to(k.dtype).unsqueeze(-1), logits).softmax(-1)

    def _slot(self, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """slot(j): (L,), or (B, L) with a mask."""
        if key_padding_mask is None:
            n = k.shape[-3]
            return torch.arange(n, device=k.device) * self.d_dot // max(n, self.d_dot)
        tokens = key_padding_mask.logical_not()
        position, counted = (tokens.cumsum(-1) - 1).clamp(min=0), tokens.sum(-1, keepdim=True)
        return position * self.d_dot // counted.clamp(min=self.d_dot)

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        return {"slots": 64}

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 1

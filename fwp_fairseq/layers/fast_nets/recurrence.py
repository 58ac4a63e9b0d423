"""A fast weight matrix that reads the net's own previous output."""

from typing import NamedTuple

import torch
from torch import Tensor


class Written(NamedTuple):
    """What is written into a recurrent matrix R at each position: keys and values (B, L, H, d), strengths (B, L, H, 1).

    Keys have gone through a softmax, strengths through a sigmoid, and are 0 at pads.
    """

    k: Tensor
    v: Tensor
    beta: Tensor

    @classmethod
    def of(cls, k: Tensor, v: Tensor, beta: Tensor, pads: Tensor | None) -> "Written":
        """From what the slow net gives."""
        beta = beta.sigmoid()
        return cls(k.softmax(-1), v, beta if pads is None else beta.masked_fill(pads[:, :, None, None], 0))

    def at(self, t: int) -> "Written":
        return Written(*(x[:, t] for x in self))


def nothing(like: Tensor, *shape: int) -> Tensor:
    """Zeros of the batch rows and heads of (B, L, H, d)."""
    return like.new_zeros(like.shape[0], like.shape[2], *shape)


def delta(R: Tensor, now: Written) -> Tensor:
    """R + beta (v - R k) k^T; R is (B, H, d_key, d_value), transposed as W is."""
    u = now.beta * (now.v - read(R, now.k))
    return R + now.k.unsqueeze(-1) * u.unsqueeze(-2)


def read(R: Tensor, x: Tensor) -> Tensor:
    """R x for every batch row and head."""
    return (x.unsqueeze(-2) @ R).squeeze(-2)


def keep(pads: Tensor | None, t: int, before: Tensor, after: Tensor) -> Tensor:
    """``before`` in the rows whose position t is a pad, else ``after``; both (B, H, d)."""
    return after if pads is None else torch.where(pads[:, t, None, None], before, after)

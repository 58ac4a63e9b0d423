"""Bidirectional rules: half of the heads process a sequence forwards, the other half backwards.

Under a rule that forgets or overwrites, the order of the writes matters. If an encoder wrote a whole source before
reading, the last words would dominate at every position. In a bidirectional encoder, position t reads right after its
own write: the first half of the heads has then written the positions up to t, the second half those from t on.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

import torch
from torch import Tensor

from .call import Call, FastWeights


def in_both_directions(run: Callable) -> Callable:
    """Extends ``run``, which only goes forwards, to bidirectional calls, by folding the heads into the batch."""

    @wraps(run)
    def wrapped(call: Call) -> tuple[Tensor, FastWeights | None]:
        if not call.both_ways:
            return run(call)
        folded = {name: _folded(getattr(call, name)) for name in ("q", "k", "v", "beta", "alpha")}
        mask = call.key_padding_mask
        mask = None if mask is None else torch.cat([mask, mask.flip(1)])
        out, _ = run(replace(call, **folded, key_padding_mask=mask, both_ways=False))
        ahead, back = out.chunk(2)
        return torch.cat([ahead, back.flip(1)], dim=2), None

    return wrapped


def _folded(x: Tensor | None) -> Tensor | None:
    """Folds (B, L, H, ...) to (2B, L, H / 2, ...): the backward heads come last, with time reversed."""
    if x is None:
        return None
    ahead, back = x.chunk(2, dim=2)
    return torch.cat([ahead, back.flip(1)])


def visible(products: Tensor) -> Tensor:
    """Masks products of pairs (H, B, i, j): causal in forward heads (j <= i), anti-causal in the others (j >= i)."""
    ahead, back = products.chunk(2)
    return torch.cat([ahead.tril(), back.triu()])

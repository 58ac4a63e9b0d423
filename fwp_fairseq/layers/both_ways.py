"""Goes through a source in both directions, each with half of the heads.

A rule that forgets or replaces depends on the order of the writes. If an encoder writes a whole source before it reads,
the last words win, whichever position reads. With both directions position t reads what was written up to t: in the
first half of the heads from the first position on, in the second half from the last position on.
"""

import torch
from torch import Tensor


def folded(x: Tensor) -> Tensor:
    """(B, L, H, ...) -> (2B, L, H / 2, ...): the heads that go backwards come last, turned round."""
    ahead, back = x.chunk(2, dim=2)
    return torch.cat([ahead, back.flip(1)])


def unfolded(x: Tensor) -> Tensor:
    """Undoes :func:`folded`."""
    ahead, back = x.chunk(2)
    return torch.cat([ahead, back.flip(1)], dim=2)


def folded_mask(mask: Tensor | None) -> Tensor | None:
    """(B, L) -> (2B, L), for what was :func:`folded`."""
    return None if mask is None else torch.cat([mask, mask.flip(1)])


def meeting(products: Tensor) -> Tensor:
    """What is left of products of all pairs (H, B, T, T): each position meets those that its head has been through."""
    ahead, back = products.chunk(2)
    return torch.cat([ahead.tril(), back.triu()])

"""Running products by multiplication alone, exact for factors of any sign and zero, as are all their derivatives.

A sum of logarithms is undefined for factors of 0 and below. The derivative of ``torch.cumprod`` divides running
products and therefore has to look at the data, which waits for a GPU and breaks a compiled graph.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Within a block, the products for every pair of positions take log2(BLOCK) passes. Across blocks they are outer
# products of a product over the rest of the one block and a product over the beginning of the other.
BLOCK = 8


def running_products(x: Tensor, dim: int) -> Tensor:
    """Entry t of the result is x_0 ... x_t along ``dim``. Cost: log2(length) passes."""
    length, reach = x.shape[dim], 1
    while reach < length:
        further = x.narrow(dim, reach, length - reach) * x.narrow(dim, 0, length - reach)
        x = torch.cat([x.narrow(dim, 0, reach), further], dim)
        reach *= 2
    return x


def _between_all(x: Tensor) -> Tensor:
    length = x.shape[-1]
    below = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(-1)
    return running_products(torch.where(below, x[..., None], 1), -2).tril()


def products_between(x: Tensor) -> Tensor:
    """(..., L) -> (..., L, L): entry (t, s) is x_{s+1} ... x_t, which is 1 for s = t, and 0 for s > t.

    Cost: a few passes over the result, whatever the length.
    """
    length = x.shape[-1]
    if length <= 2 * BLOCK:
        return _between_all(x)
    blocks = -(-length // BLOCK)
    x = F.pad(x, (0, blocks * BLOCK - length), value=1).unflatten(-1, (blocks, BLOCK))
    inside = _between_all(x)
    # until: from the first position of a block to t. after: from the position after s to the last of its block.
    until, after = x[..., :1] * inside[..., 0], inside[..., -1, :]
    # skipped, row I, column J: the product over the blocks strictly between J and I; 0 unless J is before I.
    skipped = F.pad(products_between(until[..., -1])[..., :-1, :], (0, 0, 1, 0))
    across = until[..., None] @ (skipped[..., None] * after[..., None, :, :]).flatten(-2)[..., None, :]
    within = torch.diag_embed(inside.movedim(-3, -1), dim1=-4, dim2=-2).flatten(-2)
    return (across + within).flatten(-3, -2)[..., :length, :length]

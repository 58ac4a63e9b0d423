"""A decoding step in plain PyTorch, on any device; see :mod:`.decoding` for what it computes.

In addition to the cost of the step, every step copies the block's keys and vectors, gathered through the table of
ancestors, and computes the features of these keys, d_dot numbers each.
"""

from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor

from .call import CORRECTING, divide, state_type


def unsupported_reasons(decoding, x: Tensor) -> list[str]:
    """Returns no reasons: this backend serves every call."""
    return []


def cached_type(x: Tensor) -> torch.dtype:
    return state_type(x.dtype)


def _normalized(decoding, x: Tensor) -> tuple[Tensor, Tensor]:
    """phi(x) of x (R, T, H, d_key), normalised if the site normalises features, and what the cache keeps for it."""
    phi = decoding.features(x)
    kept = x
    if decoding.normalize_features:
        total = phi.sum(-1, keepdim=True) + decoding.eps
        scale = divide(torch.ones_like(total), total)
        phi = phi * scale
        if decoding.keeps_keys:
            kept = x * scale.pow(1 / decoding.feature_map.homogeneity)
    return phi, kept if decoding.keeps_keys else phi


class _Block:
    """The n positions of the block as R rows read them, gathered to (R, n, H, ...), and these rows of the state."""

    def __init__(self, decoding, cache):
        self.decoding = decoding
        self.W = self.z = None
        if cache.W is not None:
            rows = cache.rows.long()
            self.W = cache.W.index_select(0, rows)
            self.z = None if cache.z is None else cache.z.index_select(0, rows)
        stored = cache.keys.shape[1]
        if cache.ancestors is None:
            table = cache.rows.long()[:, None].expand(-1, cache.count)
        else:
            table = cache.ancestors[:, : cache.count].long()
        index = (table + stored * torch.arange(cache.count, device=table.device)).flatten()

        def gathered(x: Tensor) -> Tensor:
            return x[: cache.count].flatten(0, 1).index_select(0, index).unflatten(0, table.shape)

        keys = gathered(cache.keys)
        self.phi = decoding.features(keys) if decoding.keeps_keys else keys
        self.written = gathered(cache.written)
        self.weights, self.left = None, None
        if cache.strengths is not None:
            strengths = gathered(cache.strengths)
            gated = decoding.rule == "gated"
            later = F.pad((1 - strengths if gated else strengths).flip(1), (0, 0, 1, 0), value=1.0).cumprod(1).flip(1)
            self.weights, self.left = strengths * later[:, 1:] if gated else later[:, 1:], later[:, 0]

    def read(self, phi: Tensor) -> tuple[Tensor, Tensor | None]:
        """Reads everything in the cache with phi (R, H, d_dot): numerator (R, H, d_value), denominator (R, H, 1)."""
        products = torch.einsum("rhd,rnhd->rnh", phi, self.phi)
        if self.weights is not None:
            products = products * self.weights
        total = products.sum(1)[..., None] if self.decoding.normalize_output else None
        out = torch.einsum("rnh,rnhd->rhd", products, self.written)
        if self.W is not None:
            left = 1 if self.left is None else self.left[..., None]
            out = out + left * torch.einsum("rhij,rhi->rhj", self.W, phi)
            if total is not None:
                total = total + left * (self.z * phi).sum(-1, keepdim=True)
        return out, total

    def answer(self, out: Tensor, total: Tensor | None) -> Tensor:
        return out if total is None else divide(out, total + self.decoding.eps)


def _without_autocast(function):
    @wraps(function)
    def wrapped(decoding, cache, *inputs):
        with torch.autocast(cache.keys.device.type, enabled=False):
            return function(decoding, cache, *inputs)

    return wrapped


@_without_autocast
def decode(decoding, cache, q, k=None, v=None, beta=None, alpha=None, key_padding_mask=None) -> Tensor:
    """Writes and reads as ``fwp::decode`` of csrc/fast_weights.cpp does."""
    if k is None:
        block = _Block(decoding, cache)
        phi_q, _ = _normalized(decoding, q)
        outputs = [block.answer(*block.read(phi_q[:, t])) for t in range(q.shape[1])]
        return _stacked(outputs, q, cache)
    rows = k.shape[0]
    first, outputs = cache.count, []
    (all_q, _), (all_k, all_kept) = _normalized(decoding, q), _normalized(decoding, k)
    for t in range(k.shape[1]):
        block = _Block(decoding, cache)
        phi_q, phi_k, kept = all_q[:, t], all_k[:, t], all_kept[:, t]
        u, share, left = v[:, t], *(None if x is None else x[:, t, :, None] for x in (beta, alpha))
        if key_padding_mask is not None:
            pads = key_padding_mask[:, t, None]
            phi_k, kept, u = (x.masked_fill(pads[..., None], 0) for x in (phi_k, kept, u))
            share = None if share is None else share.masked_fill(pads[..., None], 0)
            left = None if left is None else left.masked_fill(pads[..., None], 1)
        if decoding.rule == "gated":
            left = 1 - share
        if decoding.rule in CORRECTING:
            u = share * (u - block.answer(*_decayed(left, *block.read(phi_k))))
            if key_padding_mask is not None:
                u = u.masked_fill(pads[..., None], 0)
        cache.keys[cache.count, :rows], cache.written[cache.count, :rows] = kept, u
        cache.ancestors[:, cache.count] = torch.arange(rows, device=k.device)
        out, total = _decayed(left, *block.read(phi_q))
        product = (phi_q * phi_k).sum(-1, keepdim=True)
        if decoding.rule == "gated":
            product = share * product
        if left is not None:
            cache.strengths[cache.count, :rows] = (share if decoding.rule == "gated" else left)[..., 0]
        outputs.append(block.answer(out + product * u, None if total is None else total + product))
        cache.count += 1
    cache.count = first
    return _stacked(outputs, q, cache)


def _decayed(left: Tensor | None, *read: Tensor | None) -> tuple[Tensor | None, ...]:
    """What is left of what was read, once the position that reads has made it decay."""
    return read if left is None else tuple(None if x is None else left * x for x in read)


def _stacked(outputs: list[Tensor], q: Tensor, cache) -> Tensor:
    return torch.stack(outputs, 1) if outputs else q.new_empty(*q.shape[:3], cache.written.shape[-1])


@_without_autocast
def fold(decoding, cache) -> tuple[Tensor, Tensor | None]:
    """The state after the block, a row for every hypothesis, as ``fwp::fold`` of csrc/fast_weights.cpp returns it."""
    block = _Block(decoding, cache)
    phi = block.phi if block.weights is None else block.phi * block.weights[..., None]
    W = torch.einsum("rnhi,rnhj->rhij", phi, block.written)
    z = phi.sum(1) if decoding.normalize_output else None
    if block.W is not None:
        left = 1 if block.left is None else block.left[..., None]
        W = W + (left if block.left is None else left[..., None]) * block.W
        z = None if z is None else z + left * block.z
    return W, z

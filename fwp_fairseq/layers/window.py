"""The latest positions of causal attention, read by a softmax beside the fast weights of all earlier ones.

With a window of w positions, a query at position t reads positions t - w + 1 .. t as softmax attention does, and those
before them through features phi, whose products are weighed by a learned gain:

    y_t = (sum_near e_j v_j + g sum_far phi(q_t).phi(k_j) v_j) / (sum_near e_j + g sum_far phi(q_t).phi(k_j))
    e_j = exp(q_t . k_j / sqrt(d_key) - c),  c the largest such exponent in the window,  g = exp(min(u . q_t + b, 30))

This is the hybrid of Zhang et al. 2025 ("LoLCATs"), whose gain does not depend on the query. The far sums are a matrix
W and a vector z, as without a window, into which a position is written when it leaves the window.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..feature_maps import FeatureMap
from ..feature_maps.favor import LARGEST_EXPONENT
from ..ops.call import FastWeights, state_type

# Up to so many positions the weights of all pairs are computed in training, as the operator does without a window.
_ALL_PAIRS = 128


class Recent(NamedTuple):
    """The n latest positions, w of them or all that there are.

    Attributes:
        kv: (B, H, n, 2 d_key), their keys and values side by side.
        absent: (B, n), True at those that are not to be read, pads for one; None if all are.
    """

    kv: Tensor
    absent: Tensor | None


# (q, k, v, key_padding_mask, far) -> (out, far): applies phi to q and k, and the sum rule without any normalisation;
# far is what has left the window, in a form of the operator's own, and None before anything has.
Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Any], tuple[Tensor, Any]]


class Window(nn.Module):
    """The window of one site.

    Parameters: ``weight`` (heads, d_key), u, and ``bias`` (heads,), b, which start as 0.

    Args:
        size: w, positions in the window, the query's own included.
        heads: number of heads.
        d_key: width of queries, keys and values.

    Cost per position and head: 4 w d_key multiplications in addition to those of the fast weights; in training on up to
    128 positions the products of all pairs instead, with features and without. A state holds
    w (2 d_key + 1) numbers more per head.
    """

    def __init__(self, size: int, heads: int, d_key: int):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.zeros(heads, d_key))
        self.bias = nn.Parameter(torch.zeros(heads))

    def extra_repr(self) -> str:
        return f"size={self.size}"

    def state_size(self, d_dot: int) -> int:
        """How many numbers a head carries from one position to the next."""
        d_key = self.weight.shape[1]
        return d_dot * (d_key + 1) + self.size * (2 * d_key + 1)

    def advance(
        self, operator: Operator, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, held: "Held | None"
    ) -> tuple[Tensor, "Held"]:
        """Writes and reads at every position.

        Args:
            q, k, v: (B, L, H, d_key).
            key_padding_mask: (B, L), True at pads, which count as positions of the window and are not read.
            held: what was there before; None for nothing.

        Returns:
            ``(out, held)``: out (B, L, H, d_key) in the type of v, and what there is afterwards.
        """
        length = q.shape[1]
        if not length:
            return v, held or Held(Recent(torch.cat([k, v], -1).transpose(1, 2), None), None)
        with torch.autocast(q.device.type, enabled=False):
            now = torch.cat([k, v.to(k.dtype)], -1).transpose(1, 2)
            if held is None:
                held = Held(Recent(now[:, :, :0], None), None)
            before, far = held.recent.kv.shape[2], held.far
            kv = torch.cat([held.recent.kv.to(now.dtype), now], 2)
            absent = held.recent.absent
            if absent is not None or key_padding_mask is not None:
                masks = ((absent, before), (key_padding_mask, length))
                absent = torch.cat(
                    [kv.new_zeros(len(kv), n, dtype=torch.bool) if mask is None else mask for mask, n in masks], 1
                )
            # Of the query at t position before + t - w has left the window; in the first calls there is none.
            sums, leaving = None, max(before + length - self.size, 0)
            # With gradients the operator gets nothing to write then, but phi, u and b are part of the graph in every
            # batch, which distributed training relies on.
            if leaving or torch.is_grad_enabled():
                old_k, old_v = kv[:, :, :leaving].chunk(2, -1)
                # A column of ones beside the values, so that the denominator is read with them. The sums have the
                # values' type; not divided yet, they grow with the text, so half precision has no room for them.
                ones = F.pad(old_v.to(state_type(v.dtype)), (0, 1), value=1.0)
                pads = None if absent is None else absent[:, :leaving]
                written = (old_k.transpose(1, 2), ones.transpose(1, 2), pads)
                sums, far = operator(q[:, length - leaving :], *written, far)
                sums = F.pad(sums, (0, 0, 0, 0, length - leaving, 0))
            out = self._read(q, kv, absent, sums)
        recent = Recent(kv[:, :, leaving:], None if absent is None else absent[:, leaving:])
        return out.to(v.dtype), Held(recent, far)

    @staticmethod
    def takes_pairs(q: Tensor) -> bool:
        """Whether the weights of all pairs of positions of q (B, L, H, d_key) are cheaper than :meth:`advance`."""
        return q.shape[1] <= _ALL_PAIRS

    def weights(self, q: Tensor, k: Tensor, gram: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """How much of each position's value every query reads, (B, H, L, L); they sum to 1.

        Args:
            q, k: (B, L, H, d_key).
            gram: (B, H, L, L), the products of their features.
        """
        scores = self._scaled(q).transpose(1, 2) @ k.permute(0, 2, 3, 1).to(state_type(k.dtype))
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        near, far = hidden.triu(1) | hidden.tril(-self.size), hidden.triu(1 - self.size)
        if key_padding_mask is not None:
            pads = key_padding_mask[:, None, None]
            near, far = near | pads, far | pads
        e = self._exponentials(scores, near)
        read = e + self._gain(q).transpose(1, 2) * gram.masked_fill(far, 0)
        return read / read.sum(-1, keepdim=True)

    def _read(self, q: Tensor, kv: Tensor, absent: Tensor | None, sums: Tensor | None) -> Tensor:
        """y of q (B, L, H, d), the last L positions of kv (B, H, n + L, 2 d).

        Queries are taken in blocks, each with the positions that any of its queries reads. ``sums`` are the far ones,
        (B, L, H, d + 1), None if there are none yet.
        """
        length, w = q.shape[1], self.size
        block = max(min(w, length), 1)
        span, added, missing = w + block - 1, -length % block, w - 1 + length - kv.shape[2]
        if length == 1 and missing > 0:  # a step reads what there is
            span, missing = kv.shape[2], 0
        queries = F.pad(self._scaled(q).transpose(1, 2), (0, 0, 0, added)).unflatten(2, (-1, block))
        if missing > 0 and absent is None:
            absent = torch.zeros(kv.shape[0], kv.shape[2], dtype=torch.bool, device=kv.device)
        kv = F.pad(kv[:, :, max(-missing, 0) :].to(queries.dtype), (0, 0, max(missing, 0), added))
        k, v = kv.unfold(2, span, block).chunk(2, 3)  # (B, H, blocks, d, span)
        hidden = None
        if absent is not None:
            hidden = F.pad(absent[:, max(-missing, 0) :], (max(missing, 0), added), value=True)
            hidden = hidden.unfold(1, span, block)[:, None, :, None]
        if block > 1:  # query i of a block reads positions i .. i + w - 1 of its span
            outside = torch.ones(block, span, dtype=torch.bool, device=q.device)
            outside = outside.triu(w) | outside.tril(-1)
            hidden = outside if hidden is None else hidden | outside
        e = self._exponentials(queries @ k, hidden)
        near, total = ((x.flatten(2, 3)[:, :, :length]).transpose(1, 2) for x in (e @ v.mT, e.sum(-1, keepdim=True)))
        if sums is None:
            return near / total
        gain = self._gain(q)
        return (near + gain * sums[..., :-1]) / (total + gain * sums[..., -1:])

    @staticmethod
    def _exponentials(scores: Tensor, hidden: Tensor | None) -> Tensor:
        """exp of scores less the largest of a query; a query that may read none, a pad, gets arbitrary ones."""
        if hidden is not None:
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return (scores - scores.amax(-1, keepdim=True)).exp()

    @staticmethod
    def _scaled(q: Tensor) -> Tensor:
        return q.to(state_type(q.dtype)) / math.sqrt(q.shape[-1])

    def _gain(self, q: Tensor) -> Tensor:
        """g, (B, L, H, 1)."""
        kind = state_type(q.dtype)
        logits = torch.einsum("bthd,hd->bth", q.to(kind), self.weight.to(kind)) + self.bias.to(kind)
        return logits.clamp(max=LARGEST_EXPONENT).exp().unsqueeze(-1)

    def packed(self, held: "Held", d_dot: int) -> FastWeights:
        """W (B, H, N, 1), N of :meth:`state_size`, in place of recent positions and the W of all earlier ones."""
        kv, absent = held.recent
        batch, heads, count, width = kv.shape
        kind = state_type(kv.dtype)
        if held.far is None:
            W = kv.new_zeros(batch, heads, d_dot * (width // 2 + 1), dtype=kind)
        else:
            W = held.far.W.flatten(2)
        present = kv.new_ones(batch, count, dtype=kind) if absent is None else absent.logical_not().to(kind)
        near = torch.cat([kv.to(kind), present[:, None, :, None].expand(-1, heads, -1, -1)], -1)
        near = F.pad(near, (0, 0, self.size - count, 0))
        return FastWeights(torch.cat([W, near.flatten(2)], -1).unsqueeze(-1), None)

    def unpacked(self, state: FastWeights, d_dot: int) -> "Held":
        """The parts of what :meth:`packed` made, with features d_dot wide; zeros are the state of nothing written."""
        d_key = self.weight.shape[1]
        W, near = state[0].squeeze(-1).split((d_dot * (d_key + 1), self.size * (2 * d_key + 1)), -1)
        near = near.unflatten(-1, (self.size, 2 * d_key + 1))
        recent = Recent(near[..., :-1], near[:, 0, :, -1] == 0)
        return Held(recent, FastWeights(W.unflatten(-1, (d_dot, d_key + 1)), None))


@dataclass
class Held:
    """What causal attention with a window carries.

    Attributes:
        recent: the positions in the window.
        far: what the operator made of earlier ones; None if there are none.
    """

    recent: Recent
    far: Any

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; ``order`` may have any length."""
        self.recent = Recent(*(None if x is None else x.index_select(0, order) for x in self.recent))
        if self.far is not None:
            self.far.reorder(order)


@dataclass(frozen=True)
class Decoding:
    """Decodes with a window, lazily before it; has the interface of :class:`ops.Decoding`.

    Attributes:
        window: the site's.
        feature_map: phi of keys.
        query_map: phi of queries.
        far: decodes what has left the window, with the sum rule and without normalisation.
    """

    window: Window
    feature_map: FeatureMap
    query_map: FeatureMap
    far: ops.Decoding

    def step(self, cache: Held | None, q: Tensor, k: Tensor, v: Tensor, *, key_padding_mask: Tensor | None):
        """Writes the T positions of k, v (R, T, H, d_key), and reads with q after each: out, and the cache."""
        out, held = self.window.advance(self._far, q, k, v, key_padding_mask, cache)
        if cache is None:
            return out, held
        cache.recent, cache.far = held.recent, held.far
        return out, cache

    def _far(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor, cache: ops.Cache | None):
        q, k = self._prepared(q, self.query_map), self._prepared(k, self.feature_map)
        return self.far.step(cache, q, k, v, key_padding_mask=key_padding_mask)

    def _prepared(self, x: Tensor, phi: FeatureMap) -> Tensor:
        """Finished features of a map that the kernels do not know, else what its part in the operator takes."""
        x = x.transpose(1, 2)
        return (phi(x) if self.far.feature_map is None else phi.prepare(x)).transpose(1, 2)

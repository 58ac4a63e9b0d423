"""The latest positions of causal attention, read by a softmax beside the fast weights of all earlier ones.

With a window of w positions, a query at position t reads positions t - w + 1 .. t as softmax attention does, and those
before them through features phi, whose products are weighed by a learned gain:

    y_t = (sum_near e_j v_j + g sum_far phi(q_t).phi(k_j) v_j) / (sum_near e_j + g sum_far phi(q_t).phi(k_j))
    e_j = exp(q_t . k_j / sqrt(d_key) - c),  c the largest such exponent in the window,  g = exp(min(u . q_t + b, 30))

This is the hybrid of Zhang et al. 2025 ("LoLCATs"), whose gain does not depend on the query. The far sums are a matrix
W and a vector z, as without a window, into which a position is written when it leaves the window.
:mod:`fwp_fairseq.ops.window` reads both.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import window as operator
from ..ops.call import FastWeights, state_type

# Up to so many positions the weights of all pairs are computed in training, as the operator does without a window.
_ALL_PAIRS = 128


class Recent(NamedTuple):
    """The n latest positions, w of them or all that there are.

    Attributes:
        k, v: (B, n, H, d_key).
        absent: (B, n), True at those that are not to be read, pads for one; None if all are.
    """

    k: Tensor
    v: Tensor
    absent: Tensor | None


# (q, k, v, key_padding_mask, far) -> (out, far): applies phi to q and k, and the sum rule without any normalisation;
# far is what has left the window, in a form of the rule's own, and None before anything has.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor | None, Any], tuple[Tensor, Any]]


class Window(nn.Module):
    """The window of one site.

    Parameters: ``weight`` (heads, d_key), u, and ``bias`` (heads,), b, which start as 0.

    Args:
        size: w, positions in the window, the query's own included.
        heads: number of heads.
        d_key: width of queries, keys and values.
        backend: of the operator.

    Cost per position and head: 2 w d_key multiplications in addition to those of the fast weights, which positions
    up to the w-th do not need. A state holds w (2 d_key + 1) numbers more per head.
    """

    def __init__(self, size: int, heads: int, d_key: int, backend: str = "auto"):
        super().__init__()
        self.size = size
        self.backend = backend
        self.weight = nn.Parameter(torch.zeros(heads, d_key))
        self.bias = nn.Parameter(torch.zeros(heads))

    def extra_repr(self) -> str:
        return f"size={self.size}"

    def state_size(self, d_dot: int) -> int:
        """How many numbers a head carries from one position to the next."""
        d_key = self.weight.shape[1]
        return d_dot * (d_key + 1) + self.size * (2 * d_key + 1)

    def advance(
        self, rule: Rule, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, held: "Held | None"
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
            return v, held or Held(Recent(k, v, None), None)
        with torch.autocast(q.device.type, enabled=False):
            absent, far = key_padding_mask, None
            if held is not None:
                (before_k, before_v, before_absent), far = held
                absent = _joined(before_absent, before_k.shape[1], key_padding_mask, k)
                k, v = torch.cat([before_k.to(k.dtype), k], 1), torch.cat([before_v.to(v.dtype), v], 1)
            # Of the query at t the position t - w has left the window; in the first calls there is none.
            sums, leaving = None, max(k.shape[1] - self.size, 0)
            # With gradients the rule gets nothing to write then, but phi, u and b are part of the graph in every
            # batch, which distributed training relies on.
            if leaving or torch.is_grad_enabled():
                pads = None if absent is None else absent[:, :leaving]
                old_k, old_v = k[:, :leaving], with_ones(v[:, :leaving])
                sums, far = rule(q[:, length - leaving :], old_k, old_v, pads, far)
            out = self.read(q, k, v, sums, key_padding_mask=absent)
        recent = Recent(k[:, leaving:], v[:, leaving:], None if absent is None else absent[:, leaving:])
        return out.to(v.dtype), Held(recent, far)

    def read(self, q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None, **options: Tensor | None) -> Tensor:
        """y as :func:`fwp_fairseq.ops.window.read_window` computes it, in float32 or wider."""
        kind = state_type(q.dtype)
        given = (None if x is None else x.to(kind) for x in (q, k, v, sums, self.weight, self.bias))
        return operator.read_window(*given, size=self.size, backend=self.backend, **options)

    def takes_pairs(self, q: Tensor) -> bool:
        """Whether the weights of all pairs of positions of q (B, L, H, d_key) are cheaper than :meth:`advance`."""
        compiled = self.backend == "auto" and not operator.compiled_reasons(q.device, state_type(q.dtype))
        return q.shape[1] <= _ALL_PAIRS and not compiled

    def weights(self, q: Tensor, k: Tensor, gram: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """How much of each position's value every query reads, (B, H, L, L); they sum to 1.

        Args:
            q, k: (B, L, H, d_key).
            gram: (B, H, L, L), the products of their features.
        """
        kind = state_type(q.dtype)
        q = q.to(kind)
        scores = (q / math.sqrt(q.shape[-1])).transpose(1, 2) @ k.permute(0, 2, 3, 1).to(kind)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        near, far = hidden.triu(1) | hidden.tril(-self.size), hidden.triu(1 - self.size)
        if key_padding_mask is not None:
            pads = key_padding_mask[:, None, None]
            near, far = near | pads, far | pads
        e = operator.exponentials(scores, near)
        gain = operator.gain(q, self.weight.to(kind), self.bias.to(kind))
        read = e + gain.transpose(1, 2) * gram.masked_fill(far, 0)
        return read / read.sum(-1, keepdim=True)

    def packed(self, held: "Held", d_dot: int) -> FastWeights:
        """W (B, H, N, 1), N of :meth:`state_size`, in place of recent positions and the W of all earlier ones."""
        k, v, absent = held.recent
        batch, count, heads, d_key = k.shape
        kind = state_type(k.dtype)
        empty = k.new_zeros(batch, heads, d_dot * (d_key + 1), dtype=kind)
        W = empty if held.far is None else held.far.W.flatten(2)
        present = k.new_ones(batch, count, dtype=kind) if absent is None else absent.logical_not().to(kind)
        near = torch.cat([k.to(kind), v.to(kind), present[:, :, None, None].expand(-1, -1, heads, -1)], -1)
        near = F.pad(near, (0, 0, 0, 0, self.size - count, 0)).transpose(1, 2)
        return FastWeights(torch.cat([W, near.flatten(2)], -1).unsqueeze(-1), None)

    def unpacked(self, state: FastWeights, d_dot: int) -> "Held":
        """The parts of what :meth:`packed` made, with features d_dot wide; zeros are the state of nothing written."""
        d_key = self.weight.shape[1]
        W, near = state[0].squeeze(-1).split((d_dot * (d_key + 1), self.size * (2 * d_key + 1)), -1)
        near = near.unflatten(-1, (self.size, 2 * d_key + 1)).transpose(1, 2)
        recent = Recent(near[..., :d_key], near[..., d_key:-1], near[:, :, 0, -1] == 0)
        return Held(recent, FastWeights(W.unflatten(-1, (d_dot, d_key + 1)), None))


class Held(NamedTuple):
    """What causal attention with a window carries.

    Attributes:
        recent: the positions in the window.
        far: what the rule made of earlier ones; None if there are none.
    """

    recent: Recent
    far: Any


def with_ones(v: Tensor) -> Tensor:
    """v with a column of ones, so that the denominator is read with the values.

    The sums have this type; not divided yet, they grow with the text, so half precision has no room for them.
    """
    return F.pad(v.to(state_type(v.dtype)), (0, 1), value=1.0)


def _joined(before: Tensor | None, count: int, after: Tensor | None, x: Tensor) -> Tensor | None:
    """Two masks, side by side, the first of ``count`` positions and the second of those of x (B, L, ...)."""
    if before is None and after is None:
        return None
    masks = ((before, count), (after, x.shape[1]))
    return torch.cat([x.new_zeros(len(x), n, dtype=torch.bool) if mask is None else mask for mask, n in masks], 1)

"""A window of the latest positions, read by softmax, with fast weights for all earlier ones; for causal attention.

With a window of w positions, a query at position t reads positions t - w + 1 .. t (near) as softmax attention does, and
earlier ones (far) through features phi, whose products are multiplied by a learned gain g:

    y_t = (sum_near e_j v_j + g sum_far phi(q_t).phi(k_j) v_j) / (sum_near e_j + g sum_far phi(q_t).phi(k_j))
    e_j = exp(q_t . k_j / sqrt(d_key) - c),  g = exp(min(u . q_t + b, 30))

where c is the largest q_t . k_j / sqrt(d_key) in the window.

This combination is from Zhang et al. 2025 ("LoLCATs"), except that their gain does not depend on the query. The
far sums are a matrix W and a vector z, as without a window; a position is written into them when it leaves the window.
:mod:`fwp_fairseq.ops.window` reads both. The window counts only positions that are not padding.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..numerics import state_type, without_autocast
from ..ops import state as states
from ..ops import window as operator
from ..ops.call import FastWeights
from ..option import Contradiction, Option, Options
from ..pads import order_behind, ordered
from .features import Features
from .memory import Memory, Parts, Sizes
from .window_cache import WindowCache


@states.registered
class WindowState(NamedTuple):
    """The state of causal attention with a window.

    Attributes:
        k, v: (B, w, H, d_key), the keys and values of the w latest positions, the latest last.
        present: (B, w), 1 at positions, and 0 at unused entries if there are fewer than w positions.
        W: (B, H, d_dot, d_key + 1), the fast weights of all earlier positions; the last column is z.
    """

    k: Tensor
    v: Tensor
    present: Tensor
    W: Tensor


class _Positions(NamedTuple):
    """The keys and values of a state, if there is one, followed by those of a call.

    Attributes:
        k, v: (B, S, H, d_key); in each row, padding comes last.
        absent: (B, S), True at entries that are not read; None if all are read.
        last: (B, w), the indices of the w latest positions, negative if there are fewer; None without padding.
    """

    k: Tensor
    v: Tensor
    absent: Tensor | None
    last: Tensor | None


class Window(Memory):
    """Reads the latest positions by softmax, and all earlier ones through a matrix.

    Parameters: u, in ``weight`` (heads, d_key), and b, in ``bias`` (heads,), which start at 0, and those of the
    features.

    Cost per position and head: 2 w d_key multiplications in addition to those of the fast weights, which the first w
    positions do not need. A state has 2 w d_key additional numbers per head, and w for all heads together.
    """

    State = WindowState

    @classmethod
    def options_read(cls) -> tuple[Option, ...]:
        what = (
            "reads the latest N positions by softmax attention, and all earlier ones through fast weights; requires "
            "the update rule sum (default: none)"
        )
        return (Option("window", "window", None, None, what, sites=("decoder",)),)

    @classmethod
    def chosen_by(cls, options: Options) -> str | None:
        return None if options.window is None else "window"

    @classmethod
    def contradictions(cls, options: Options) -> Iterator[Contradiction]:
        if options.update_rule != "sum":
            why = "the sums over the window and over earlier positions are added"
            yield Contradiction(("window", "update_rule"), why, "left out, or the rule sum")
        if options.chosen_normalizer != "attention":
            why = "the sums over the window and over earlier positions have one denominator, the sum of both weights"
            if options.normalizer == "auto":  # with an output norm, it chooses the normaliser "none"
                yield Contradiction(("window", "output_norm"), why, "left out, or no output norm")
            yield Contradiction(("window", "normalizer"), why, "left out, or the normaliser auto or attention")

    def __init__(self, options: Options, features: Features, sizes: Sizes):
        super().__init__(options, features, sizes)
        self.size = options.window
        self.weight = nn.Parameter(torch.zeros(sizes.heads, sizes.d_key))
        self.bias = nn.Parameter(torch.zeros(sizes.heads))
        self.far = ops.Decoding("sum", features.kernel_map, False, False, backend=options.backend)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"size={self.size}"

    def attend(self, q, k, v, parts: Parts, *, key_padding_mask=None, state=None, return_state=False):
        with without_autocast(q):
            order = order_behind(key_padding_mask)
            if order is not None:
                q, k, v = (ordered(x, order) for x in (q, k, v))
            positions = self._positions(k, v, key_padding_mask, state)
            sums, W = self._write_far(q, positions, state, return_state)
            out = self.read_window(q, positions.k, positions.v, sums, key_padding_mask=positions.absent)
            if order is not None:
                out = ordered(out, order.argsort(dim=1))
        return out.to(v.dtype), self._state_of(positions, W) if return_state else None

    def _positions(self, k, v, key_padding_mask, state) -> _Positions:
        length, before = k.shape[1], 0 if state is None else self.size
        if key_padding_mask is None:
            absent = last = None
        else:
            count = key_padding_mask.logical_not().sum(1, keepdim=True)
            absent = torch.arange(length, device=k.device) >= count
            last = count + before - self.size + torch.arange(self.size, device=k.device)
        if state is not None:
            missing = state.present == 0
            absent = torch.cat([missing, missing.new_zeros(k.shape[0], length) if absent is None else absent], 1)
            k, v = torch.cat([state.k.to(k.dtype), k], 1), torch.cat([state.v.to(v.dtype), v], 1)
        return _Positions(k, v, absent, last)

    def _write_far(self, q, positions: _Positions, state, return_state) -> tuple[Tensor | None, Tensor | None]:
        """Writes the positions that leave the window, and reads them with the F queries that come after them.

        Returns:
            The sums that these queries read, (B, F, H, d_key + 1), whose last column is the denominator, and the next
            W; None for sums or a state that is not needed.
        """
        # At the query of position t, position t - w has left the window; in a text of up to w positions none has. Under
        # autograd the rule is called nevertheless, without keys, so that phi, u and b are part of the graph in every
        # batch, as distributed training requires.
        leaving = max(positions.k.shape[1] - self.size, 0)
        if not leaving and not torch.is_grad_enabled():
            return None, None if state is None else state.W
        pads = None if positions.absent is None else positions.absent[:, :leaving]
        if return_state and positions.last is not None:  # the w latest positions of each row stay in the window
            pads = pads | (torch.arange(leaving, device=q.device) >= positions.last[:, :1])
        sums, far = ops.sum_rule(
            self.features.queries(q[:, q.shape[1] - leaving :]),
            self.features.keys(positions.k[:, :leaving]),
            _with_ones(positions.v[:, :leaving]),
            feature_map=self.features.kernel_map,
            key_padding_mask=pads,
            normalize_output=False,
            initial_state=None if state is None else FastWeights(state.W, None),
            return_state=return_state,
            backend=self.options.backend,
        )
        return sums, None if far is None else far.W

    def _state_of(self, positions: _Positions, W: Tensor | None) -> WindowState:
        k, v, absent, last = positions
        dtype, missing = state_type(k.dtype), max(self.size - k.shape[1], 0)
        present = k.new_ones(k.shape[:2], dtype=dtype) if absent is None else absent.logical_not().to(dtype)
        if last is None:
            k, v = (F.pad(x[:, -self.size :], (0, 0, 0, 0, missing, 0)) for x in (k, v))
            present = F.pad(present[:, -self.size :], (missing, 0))
        else:
            there = last >= 0
            k, v = (ordered(x, last.clamp(min=0)).masked_fill(~there[..., None, None], 0) for x in (k, v))
            present = present.gather(1, last.clamp(min=0)) * there
        if W is None:
            W = k.new_zeros(k.shape[0], *self.state_shapes().W, dtype=dtype)
        return WindowState(k.to(dtype), v.to(dtype), present, W)

    def read_window(self, q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None, **options: Tensor | None) -> Tensor:
        """Calls :func:`fwp_fairseq.ops.window.read_window` in float32 or wider."""
        dtype = state_type(q.dtype)
        tensors = (None if x is None else x.to(dtype) for x in (q, k, v, sums, self.weight, self.bias))
        return operator.read_window(*tensors, size=self.size, backend=self.options.backend, **options)

    def weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        with without_autocast(q):
            gram = self.features.products(q, k)
            dtype, places = state_type(q.dtype), torch.arange(q.shape[1], device=q.device)[None]
            hidden = torch.ones(gram.shape[-2:], dtype=torch.bool, device=q.device).triu(1)[None]
            q = q.to(dtype)
            scores = (q / math.sqrt(q.shape[-1])).transpose(1, 2) @ k.permute(0, 2, 3, 1).to(dtype)
            if key_padding_mask is not None:
                hidden = hidden | key_padding_mask[:, None]
                places = key_padding_mask.logical_not().cumsum(1)
            is_far = places[:, :, None] - places[:, None] >= self.size
            e = operator.exponentials(scores, (hidden | is_far)[:, None])
            gain = operator.gain(q, self.weight.to(dtype), self.bias.to(dtype))
            read = e + gain.transpose(1, 2) * gram.masked_fill((hidden | ~is_far)[:, None], 0)
            return read / read.sum(-1, keepdim=True)

    def state_shapes(self) -> WindowState:
        _, heads, d_key, *_ = self.sizes
        recent = (self.size, heads, d_key)
        return WindowState(recent, recent, (self.size,), (heads, self.features.d_dot, d_key + 1))

    def decodes_lazily(self, k: Tensor) -> bool:
        return self.far.serves(self.features.keys(k))

    def _step(self, held: WindowCache | None, q, k, v, parts: Parts, key_padding_mask):
        cache = held or WindowCache.empty(self.size, k[:, :1])
        pads = [None] * q.shape[1] if key_padding_mask is None else key_padding_mask.split(1, 1)
        with without_autocast(q):
            read = [self._step_once(cache, *x) for x in zip(*(x.split(1, 1) for x in (q, k, v)), pads, strict=True)]
        return (read[0] if len(read) == 1 else torch.cat(read, 1)).to(v.dtype), cache

    def _step_once(self, cache: WindowCache, q: Tensor, k: Tensor, v: Tensor, pads: Tensor | None) -> Tensor:
        if pads is not None:
            cache.move_apart()
        sums = None
        if (oldest := cache.oldest(pads)) is not None:
            old_k, old_v, stays = oldest
            q_far, k_far = self.features.queries(q), self.features.keys(old_k)
            sums, cache.far = self.far.step(cache.far, q_far, k_far, _with_ones(old_v), key_padding_mask=stays)
        cache.write(k, v, pads)
        stored_k, stored_v, places, absent = cache.window()
        return self.read_window(q, stored_k, stored_v, sums, places=places, key_padding_mask=absent)


def _with_ones(v: Tensor) -> Tensor:
    """Appends a column of ones to v, from which the denominator is read; converts half precision to float32.

    The sums have the dtype of the result. Before the division they grow with the text, so half precision would
    overflow.
    """
    return F.pad(v.to(state_type(v.dtype)), (0, 1), value=1.0)

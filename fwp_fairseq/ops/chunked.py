"""The operators as matrix products in pure PyTorch, which are fast without compiled code, on any device.

The positions are cut into chunks. The rows of Q, K and V are phi(q_t), phi(k_t) and v_t at the positions of a chunk;
those of U are the vectors that a loop over time (:mod:`.reference`) would write, and those of Y are the outputs before
they are normalised. W0 and z0 are the state before the chunk. Then

    Y = ((Q K^T) * M) U + decay * (Q W0)
    W = total W0 + (K * e)^T U

where W is the state after the chunk and M is the causal mask. The denominators and z are computed like Y and W, with
ones in place of U and z0 in place of W0. Under the rules with decay, the entries of M are the factors by which each
write has decayed at each read. W0 has decayed by the factor ``decay`` at each position, and by ``total`` at the end of
the chunk, where each write has decayed by ``e``. Without decay, all of these are 1. Under the gated rule, M and e also
contain the beta of the write. At padding, M and e are 0. The vectors to write are

    sum, gated   U = V
    delta        U = (I + r * stril(K K^T))^-1 (beta V - r * (K W0))
    gated_delta  U = (I + r * stril(K K^T) * M)^-1 (beta V - r * decay * (K W0))

where stril keeps what is below the diagonal, and r is beta, divided by z.k + eps if outputs are normalised. The
triangular system of the delta rule is from Yang et al. 2024, that of the gated delta rule from Yang, Kautz and
Hatamizadeh 2025. Their M contains quotients of cumulative products of alpha; this one contains the products themselves,
so that alpha may be 0 or negative.

If features are divided by their sums, the code divides the small Gram matrices instead of the wide features. Cost per
head: O(L^2 (d_dot + d_value)) in one chunk, O(L d_dot d_value) over many. The states of single steps are never stored.
"""

from collections.abc import Iterable
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor

from .both_ways import in_both_directions
from .call import CORRECTING, Call, FastWeights, divide

# Up to about this many positions a Gram matrix costs less than the state (d_dot 256, d_value 64). Longer inputs are cut
# into chunks of CHUNK positions.
LONGEST_SINGLE_CHUNK = 128
CHUNK = 64


class _Features:
    """phi(x) of x ``(B, H, L, d_key)``, kept apart from the factor ``scale`` ``(B, H, L, 1)`` that normalises it."""

    def __init__(self, phi: Tensor, scale: Tensor | None = None):
        self.phi = phi
        self.scale = scale

    @classmethod
    def of(cls, x: Tensor, call: Call) -> "_Features":
        phi = call.features(x)
        if not call.normalize_features:
            return cls(phi)
        total = phi.sum(-1, keepdim=True) + call.eps
        return cls(phi, divide(torch.ones_like(total), total))

    def split(self, length: int | None) -> list["_Features"]:
        """Cuts the features into parts of ``length`` positions; None for one part."""
        return [_Features(*parts) for parts in zip(_split(self.phi, length), _split(self.scale, length), strict=False)]

    def scaled(self, x: Tensor) -> Tensor:
        """Multiplies the rows of x (B, H, L, ...) by the factors of the features."""
        return x if self.scale is None else x * self.scale

    def dot(self, other: "_Features") -> Tensor:
        """Computes all inner products with ``other``, ``(B, H, L, L')``."""
        gram = self.scaled(self.phi @ other.phi.mT)
        return gram if other.scale is None else gram * other.scale.mT

    def read(self, W: Tensor) -> Tensor:
        """Computes W phi at every position, ``(B, H, L, columns of W)``."""
        return self.scaled(self.phi @ W)

    def written(self, u: Tensor) -> Tensor:
        """Sums phi u^T over positions, ``(B, H, d_dot, columns of u)``."""
        return self.phi.mT @ self.scaled(u)


def _split(x: Tensor | None, length: int | None) -> Iterable[Tensor | None]:
    """Cuts x (B, H, L, ...) into parts of ``length`` positions (None: one part); repeats None without end if x is None.

    Each slice would allocate a gradient of all L positions; ``split`` has one gradient for all parts.
    """
    return repeat(None) if x is None else [x] if length is None else x.split(length, 2)


def _heads_first(x: Tensor) -> Tensor:
    """Transposes (B, L, H, d) to a contiguous (B, H, L, d), which suits batched matrix products."""
    return x.transpose(1, 2).contiguous()


class _Chunk:
    """Computes what is needed to read and write one chunk of keys, values and gates.

    Numbers per position have shape ``(B, H, L, 1)``. ``present`` is 0 at padding and 1 elsewhere. At each position,
    earlier content is multiplied by ``step_decay``, and the position's own write by ``strength``. None stands for 1
    everywhere.
    """

    def __init__(
        self, k: _Features, v: Tensor, beta: Tensor | None, alpha: Tensor | None, present: Tensor | None, call: Call
    ):
        self.k, self.v, self.beta, self.present = k, v, beta, present
        self.call = call
        self.step_decay, self.strength = (1 - beta, beta) if call.rule == "gated" else (alpha, present)
        self._between: Tensor | None = None

    def between(self) -> Tensor:
        """Computes the decay of the write at s up to position t >= s, (B, H, L, L)."""
        if self._between is None:
            length = self.step_decay.shape[2]
            later = torch.ones(length, length, dtype=torch.bool, device=self.step_decay.device).tril(-1)
            self._between = torch.where(later, self.step_decay, 1).cumprod(-2).tril()
        return self._between

    def old(self, W: Tensor, x: _Features) -> Tensor:
        """Reads, with x, the state before the chunk, decayed up to each position."""
        decay = self.cumulative_decay()
        return x.read(W) if decay is None else decay * x.read(W)

    def updates(self, W: Tensor | None, z: Tensor | None) -> Tensor:
        """Computes U, the vectors to write, without their decay; W and z are the state before the chunk."""
        if self.call.rule not in CORRECTING:
            return self.v
        length = self.v.shape[2]
        gram = self.k.dot(self.k).tril(-1) if length > 1 else None
        if gram is not None and self.step_decay is not None:
            gram = gram * self.between()
        rate = self.beta
        if self.call.normalize_output:
            rate = divide(rate, self._denominators(gram, z) + self.call.eps)
        target = self.beta * self.v
        if W is not None:
            target = target - rate * self.old(W, self.k)
        if gram is None:
            return target
        return torch.linalg.solve_triangular(rate * gram, target, upper=False, unitriangular=True)

    def _denominators(self, gram: Tensor | None, z: Tensor | None) -> Tensor:
        """Computes z.k_t just before the write of every position t, including the decay of z up to there."""
        total = torch.zeros_like(self.beta)
        if gram is not None:
            total = (gram if self.present is None else gram * self.present.mT).sum(-1, keepdim=True)
        return total if z is None else total + self.old(z[..., None], self.k)

    def weights(self) -> Tensor | None:
        """Computes e, ``(B, H, L, 1)``, which is 0 at padding; None if it is all ones."""
        if self.step_decay is None:
            return self.present
        later = F.pad(self.step_decay[:, :, 1:], (0, 0, 0, 1), value=1)
        left = later.flip(2).cumprod(2).flip(2)
        return left if self.strength is None else left * self.strength

    def causal_weights(self) -> Tensor | None:
        """Computes M on and below the diagonal, ``(B, H, L, L)`` or broadcastable to it; None if it is all ones."""
        if self.step_decay is None:
            return None if self.present is None else self.present.mT
        return self.between() if self.strength is None else self.between() * self.strength.mT

    def cumulative_decay(self) -> Tensor | None:
        """Computes the decay of the earlier state up to and including each position; None without decay."""
        return None if self.step_decay is None else self.step_decay.cumprod(2)

    def next_state(self, u: Tensor, W: Tensor | None, z: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Computes the state after the chunk from the vectors u that it writes and the state before it."""
        weights = self.weights()
        new_W = self.k.written(u if weights is None else u * weights)
        new_z = None
        if self.call.normalize_output:
            ones = u.new_ones(*u.shape[:-1], 1) if weights is None else weights.expand(*u.shape[:-1], 1)
            new_z = self.k.written(ones)[..., 0]
        if W is None:
            return new_W, new_z
        decay = self.cumulative_decay()
        if decay is not None:
            W, z = W * decay[:, :, -1:], None if z is None else z * decay[:, :, -1]
        return W + new_W, None if new_z is None else z + new_z


def _read_gram(q: _Features, chunk: _Chunk, u: Tensor, W: Tensor | None, z: Tensor | None, causal: bool) -> Tensor:
    """Reads with q without computing the state, after each position of the chunk if causal, else after all of them."""
    call = chunk.call
    gram = q.dot(chunk.k)
    weights = chunk.causal_weights() if causal else chunk.weights()
    if weights is not None:
        gram = gram * (weights if causal else weights.mT)
    if causal:
        gram = gram.tril()
    out = gram @ u
    total = gram.sum(-1, keepdim=True) if call.normalize_output else None
    if W is not None:
        decay = chunk.cumulative_decay()
        if decay is not None and not causal:
            decay = decay[:, :, -1:]
        old = q.read(W)
        out = out + (old if decay is None else decay * old)
        if total is not None:
            old = q.read(z[..., None])
            total = total + (old if decay is None else decay * old)
    return out if total is None else divide(out, total + call.eps)


def _read_state(q: _Features, W: Tensor, z: Tensor | None, call: Call) -> Tensor:
    out = q.read(W)
    return divide(out, q.read(z[..., None]) + call.eps) if call.normalize_output else out


@in_both_directions
def run(call: Call) -> tuple[Tensor, FastWeights | None]:
    """Computes the operator; see :mod:`.fast_weights` for shapes and :class:`.call.Call` for the inputs."""
    raw_k, raw_v, present = call.k, call.v.to(call.dtype), None
    beta, alpha = (None if x is None else x.to(call.dtype)[..., None] for x in (call.beta, call.alpha))
    if call.key_padding_mask is not None:
        # ``present`` removes padding from the Gram matrix. Its keys and values are zeroed too, so that a NaN there
        # cannot spread.
        padded = call.key_padding_mask[:, :, None, None]
        raw_k, raw_v = raw_k.masked_fill(padded, 0), raw_v.masked_fill(padded, 0)
        beta = None if beta is None else beta.masked_fill(padded, 0)
        alpha = None if alpha is None else alpha.masked_fill(padded, 1)
        present = _heads_first((~padded).to(call.dtype))
    q, k = (_Features.of(_heads_first(x), call) for x in (call.q, raw_k))
    v = _heads_first(raw_v)
    beta, alpha = (None if x is None else _heads_first(x) for x in (beta, alpha))

    W = z = None
    if call.initial_state is not None:
        W = call.initial_state.W.to(call.dtype)
        z = call.initial_state.z.to(call.dtype) if call.normalize_output else None

    targets, sources, d_dot, d_value = q.phi.shape[2], v.shape[2], k.phi.shape[-1], v.shape[-1]
    # The state is computed if it is requested or, without causal, if Gram matrices cost more.
    state_needed = call.return_state or not (
        call.causal or targets * sources * (d_dot + d_value) <= (targets + sources) * d_dot * d_value
    )
    needs_gram = call.causal or call.rule in CORRECTING
    # None splits nothing, so that exported graphs accept any length.
    longest = CHUNK if needs_gram and sources > LONGEST_SINGLE_CHUNK else None
    count = int(sources > 0) if longest is None else -(-sources // longest)
    parts = zip(k.split(longest), *(_split(x, longest) for x in (v, beta, alpha, present)), strict=False)
    chunks = (_Chunk(*part, call) for part in parts)
    queries = q.split(longest)[:count] if call.causal else [q] * count

    reads_gram = call.causal or (count == 1 and not state_needed)
    outputs = []
    for number, (chunk, query) in enumerate(zip(chunks, queries, strict=False)):
        u = chunk.updates(W, z)
        if reads_gram:
            outputs.append(_read_gram(query, chunk, u, W, z, causal=call.causal))
        if state_needed or not reads_gram or number + 1 < count:
            W, z = chunk.next_state(u, W, z)

    if W is None and (call.return_state or not outputs):
        # Zeros that are computed from the empty keys, so that the parameters of their map get a gradient.
        W = k.written(v)
        z = W.new_zeros(W.shape[:-1]) if call.normalize_output else None
    if not outputs:
        outputs.append(_read_state(q, W, z, call))
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    state = FastWeights(W, z) if call.return_state else None
    return out.transpose(1, 2).to(call.v.dtype), state

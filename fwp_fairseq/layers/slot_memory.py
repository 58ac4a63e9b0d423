"""Fast weights of slots, which are read through a softmax.

Keys k_j and values v_j are written by the sum rule with the features phi of :class:`.feature_maps.slots.Slots`, which
say how much of position j goes into each slot s:

    W = sum_j phi(k_j) [k_j; v_j]^T        z = sum_j phi(k_j)

A slot so holds the mean K_s of its keys, the mean V_s of its values and their number z_s, and a query reads

    y = sum_s a_s V_s        a = softmax_s(q . K_s / sqrt(d_key) + log z_s)

This is attention with bounded memory (Peng et al. 2022), to which log z_s is added: z_s equal keys in a slot then
count as much as they do in softmax attention (as in Bolya et al. 2023, "Token Merging", proportional attention). Where
every position has a slot for itself, y is what softmax attention computes. In other words, the fast net has two layers,
of which the first is followed by a softmax.

Cost per position and head: 2 m d_key multiplications for a write, and as many for a read; a source of n < m positions
uses n slots. A state holds m (2 d_key + 1) numbers per head, however long the source.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from ..feature_maps.identity import Identity
from ..feature_maps.slots import Slots
from ..ops import slots
from ..ops.call import state_type

# Slots that hold less count as this much, so that their means are finite.
_SMALLEST = 1e-20


def _write(
    phi: Slots, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, state: ops.FastWeights | None, backend: str
) -> ops.FastWeights:
    """W and z of the slots that the source uses, or of all m slots if there is a state to write on top of."""
    shares = phi.shares(k, key_padding_mask)
    if state is not None:
        shares = F.pad(shares, (0, phi.d_dot - shares.shape[-1]))
    _, written = ops.sum_rule(
        shares[:, :0],
        shares,
        torch.cat([k, v], -1),
        feature_map=Identity(shares.shape[-1]),
        causal=False,
        key_padding_mask=key_padding_mask,
        normalize_output=True,
        initial_state=state,
        return_state=True,
        backend=backend,
    )
    return written


def _held(z: Tensor) -> tuple[Tensor, Tensor]:
    """What sums over positions are divided by, to be means, and log z; nothing is read from a slot that holds 0."""
    held = z.clamp(min=_SMALLEST)
    return held, torch.where(z > 0, held.log(), torch.finfo(z.dtype).min / 4)


def _read(q: Tensor, W: Tensor, z: Tensor) -> Tensor:
    """What queries (B, T, H, d_key) read: (B, T, H, d_key)."""
    held, logarithm = _held(z)
    keys, values = (W / held.unsqueeze(-1)).split(q.shape[-1], -1)
    q = q.transpose(1, 2).to(W.dtype) / math.sqrt(q.shape[-1])
    return ((q @ keys.mT + logarithm.unsqueeze(-2)).softmax(-1) @ values).transpose(1, 2)


def attend(
    phi: Slots,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Tensor | None,
    *,
    backend: str,
    initial_state: ops.FastWeights | None = None,
    return_state: bool = False,
) -> tuple[Tensor, ops.FastWeights | None]:
    """Writes k and v on top of a state, and reads with q.

    Args:
        q: (B, T, H, d_key).
        k, v: (B, S, H, d_key); S may be 0 if there is a state.
        key_padding_mask: (B, S), True at pads, which write nothing.
        initial_state: W (B, H, m, 2 d_key) and z (B, H, m); slots are counted from 0 again for what is added to it.

    Returns:
        ``(out, state)``, out (B, T, H, d_key) in the type of v; the state if it is wanted, else None.
    """
    with torch.autocast(q.device.type, enabled=False):
        if initial_state is None and not return_state and _is_compiled(q, backend):
            kind = state_type(q.dtype)
            given = (x.to(kind) for x in (q, k, v, phi.weight, phi.sharpness))
            return slots.read_slots(*given, key_padding_mask).to(v.dtype), None
        if k.shape[1] or initial_state is None:
            initial_state = _write(phi, k, v, key_padding_mask, initial_state, backend)
        W, z = initial_state
        out = _read(q, W, z)
        if not return_state:
            return out.to(v.dtype), None
        unused = phi.d_dot - z.shape[-1]
        return out.to(v.dtype), ops.FastWeights(F.pad(W, (0, 0, 0, unused)), F.pad(z, (0, unused)))


def _is_compiled(q: Tensor, backend: str) -> bool:
    return backend in ("auto", "native") and not slots.compiled_reasons(q.device, state_type(q.dtype))


def takes_pairs(phi: Slots, q: Tensor, k: Tensor, backend: str) -> bool:
    """Whether :func:`pair_weights` are cheaper than :func:`attend`."""
    if _is_compiled(q, backend):
        return False
    queries, sources, d_key = q.shape[1], k.shape[1], q.shape[-1]
    used = min(phi.d_dot, sources)
    return queries * sources * (used + d_key) <= (queries + sources) * used * d_key


@dataclass
class Cache:
    """The slots of N sources, from which R rows (hypotheses) read.

    Attributes:
        keys: (N, H, d_key, s), the means K_s over sqrt(d_key) of the s slots that the longest source uses.
        held: (N, H, 1, s), log z_s.
        values: (N, H, s, d_key), the means V_s.
        rows: (R,), the number of the source that each row reads; fastest if those of a source are next to each other.
        sources: (N,), the numbers of the sources.
        places: (R,), where the source of each row is among them.
        together: how many rows in a row read each source, where that is the same number for all; else None.
    """

    keys: Tensor
    held: Tensor
    values: Tensor
    rows: Tensor

    def __post_init__(self):
        self.sources = torch.arange(len(self.keys), dtype=self.rows.dtype, device=self.rows.device)
        self._group()

    def reorder(self, order: Tensor) -> None:
        """Makes row i the old row order[i]; ``order`` may have any length."""
        self.rows = self.rows.index_select(0, order)
        self._group()

    def _group(self) -> None:
        """Keeps only sources that rows still read: sentences whose search has ended go in this way."""
        read, self.places, counts = torch.unique_consecutive(self.rows, return_inverse=True, return_counts=True)
        if len(read) != len(self.sources) or not torch.equal(read, self.sources):
            kept = (read[:, None] == self.sources).int().argmax(1)
            self.keys, self.held, self.values = (x.index_select(0, kept) for x in (self.keys, self.held, self.values))
            self.sources = read
        self.together = len(self.rows) // len(read) if len(read) and (counts == counts[0]).all() else None


@dataclass(frozen=True)
class Decoding:
    """Decodes from slots that the hypotheses of a sentence share; has the interface of :class:`ops.Decoding`."""

    feature_map: Slots
    backend: str

    def write(self, k: Tensor, v: Tensor, *, key_padding_mask: Tensor | None, rows: Tensor) -> Cache:
        """Writes whole sources k, v (N, S, H, d_key); row r will read source ``rows[r]`` (R,)."""
        W, z = _write(self.feature_map, k, v, key_padding_mask, None, self.backend)
        held, logarithm = _held(z)
        means = W / held.unsqueeze(-1)
        d_key = k.shape[-1]
        keys = (means[..., :d_key] / math.sqrt(d_key)).mT.contiguous()
        return Cache(keys, logarithm.unsqueeze(-2), means[..., d_key:].contiguous(), rows)

    def read(self, cache: Cache, q: Tensor) -> Tensor:
        """Reads with q (R, T, H, d_key); returns (R, T, H, d_key) in q's type.

        Cost per position, row and head: 2 m d_key products; a source is fetched once for all rows that read it.
        """
        keys, held, values, together = cache.keys, cache.held, cache.values, cache.together
        if together is None:
            keys, held, values = (x.index_select(0, cache.places) for x in (keys, held, values))
            together = 1
        queries = q.to(keys.dtype).unflatten(0, (-1, together)).flatten(1, 2).transpose(1, 2)
        out = (queries @ keys + held).softmax(-1) @ values
        return out.transpose(1, 2).reshape(q.shape).to(q.dtype)


def pair_weights(phi: Slots, q: Tensor, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """How much of each position's value every query reads, (B, H, T, S), in float32 or wider; they sum to 1."""
    with torch.autocast(q.device.type, enabled=False):
        shares = phi.shares(k, key_padding_mask).transpose(1, 2)
        if key_padding_mask is not None:
            shares = shares.masked_fill(key_padding_mask[:, None, :, None], 0)
        held, logarithm = _held(shares.sum(2, keepdim=True))
        means = shares / held  # (B, H, S, slots), the weights with which a slot's means are made of the positions
        q, k = (x.transpose(1, 2).to(shares.dtype) for x in (q, k))
        return (q / math.sqrt(q.shape[-1]) @ k.mT @ means + logarithm).softmax(-1) @ means.mT

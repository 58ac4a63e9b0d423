"""Softmax attention with the interface of the fast-weight layers, as a baseline."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..ops import state as states
from .projections import Projections


@states.registered
class KeysAndValues(NamedTuple):
    """Holds everything written: k and v (B, H, S, d_key), and pads (B, S), True at positions that are not read."""

    k: Tensor
    v: Tensor
    pads: Tensor

    def followed_by(self, other: "KeysAndValues") -> "KeysAndValues":
        """Returns the positions of both, in this order."""
        return KeysAndValues(*(torch.cat(pair, at) for *pair, at in zip(self, other, (2, 2, 1), strict=True)))


class SoftmaxAttention(Projections):
    """Computes softmax(q K^T / sqrt(d_key)) V (Vaswani et al. 2017) with the interface of :class:`FastWeightAttention`.

    The projections have the same names and initialisation. The state contains all keys and values, 2 d_key numbers per
    head and position, and every position reads all of them.

    Args:
        embed_dim, num_heads, causal, source_dim: as in :class:`FastWeightAttention`.
        dropout: dropout on attention weights.

    Raises:
        ValueError: embed_dim is not divisible by num_heads, or a source is given to causal attention.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool = True,
        source_dim: int | None = None,
        dropout: float = 0.0,
    ):
        super().__init__(embed_dim, num_heads, causal=causal, source_dim=source_dim)
        self.dropout = dropout
        self.start_projections()

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        state: KeysAndValues | None = None,
        key_padding_mask: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, KeysAndValues | None]:
        """Appends ``source``, or x itself, to a state, and reads with every position of x.

        Shapes, masks and results are those of :meth:`FastWeightAttention.forward`. A position that sees only padding
        reads zeros.
        """
        x, written = self.checked_inputs(x, source, key_padding_mask)
        if key_padding_mask is None:
            key_padding_mask = torch.zeros(written.shape[:2], dtype=torch.bool, device=x.device)
        after = KeysAndValues(self._heads("k", written), self._heads("v", written), key_padding_mask)
        if state is not None:
            state = self._checked(state, x)
            after = state.followed_by(after) if written.shape[1] else state  # to append nothing would copy the state
        return self._attend(x, after), after if return_state else None

    def read(self, x: Tensor, state: KeysAndValues) -> Tensor:
        """Reads from a state with x (B, T, embed_dim), without writing; only with ``causal=False``."""
        self.check_read(x, state)
        # This calls the module with an empty source, so that hooks that prepare its parameters run.
        return self(x, x.new_empty(x.shape[0], 0, self.source_dim), state=state, return_state=False)[0]

    def step(self, x: Tensor, state: KeysAndValues | None = None) -> tuple[Tensor, KeysAndValues]:
        """Processes one more position x (B, embed_dim) of causal attention; returns (out (B, embed_dim), state)."""
        if not self.causal:
            raise ValueError("step is for attention with causal=True; read takes the state that forward returned")
        out, state = self(x[:, None], state=state)
        return out[:, 0], state

    def _checked(self, state: KeysAndValues, x: Tensor) -> KeysAndValues:
        """Returns the state; raises ValueError unless it fits these heads and the rows of x."""
        last = state[-1] if isinstance(state, tuple | list) and state else None
        stored = last.shape[-1] if isinstance(last, Tensor) and last.dim() else 0
        heads = self.num_heads, stored, self.head_dim
        return states.checked(state, KeysAndValues(heads, heads, (stored,)), x, masks=("pads",))

    def _heads(self, name: str, x: Tensor) -> Tensor:
        """Projects x (B, L, width) to q, k or v (B, H, L, d_key)."""
        return self.project(name, x).transpose(1, 2)

    def _attend(self, x: Tensor, state: KeysAndValues) -> Tensor:
        visible = ~state.pads[:, None, None]
        if self.causal:
            targets, sources = x.shape[1], state.k.shape[2]
            visible = visible & visible.new_ones(targets, sources).tril(sources - targets)
        some = visible.any(-1, keepdim=True)
        dropout = self.dropout if self.training else 0.0
        # Softmax is undefined for a query that sees nothing, so it reads everything and the result is multiplied by 0.
        q = self._heads("q", x)
        k, v = state.k.to(q.dtype), state.v.to(q.dtype)
        read = scaled_dot_product_attention(q, k, v, attn_mask=visible | ~some, dropout_p=dropout)
        return self.out_proj((read * some).transpose(1, 2).flatten(2))

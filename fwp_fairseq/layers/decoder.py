"""A small language model with fast weights."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..memories import State
from ..memories.start import reset_parts
from .attention import FastWeightAttention
from .softmax import SoftmaxAttention

# The state of every layer.
DecoderState = tuple[State, ...]


class DecoderLayer(nn.Module):
    """Computes x + attention(norm(x)), then x + feed-forward(norm(x)): a pre-norm Transformer layer."""

    def __init__(self, kind: str, embed_dim: int, num_heads: int, ffn_dim: int, dropout: float, **attention: Any):
        super().__init__()
        self.attention_norm = nn.LayerNorm(embed_dim)
        if kind == "softmax":
            self.attention = SoftmaxAttention(embed_dim, num_heads, **attention)
        else:
            self.attention = FastWeightAttention(kind, embed_dim, num_heads, causal=True, **attention)
        self.ffn_norm = nn.LayerNorm(embed_dim)
        self.ffn = nn.Sequential(nn.Linear(embed_dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, embed_dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        y, state = self.attention(self.attention_norm(x), state=state)
        x = x + self.dropout(y)
        return x + self.dropout(self.ffn(self.ffn_norm(x))), state


class TiedEmbedding(nn.Embedding):
    """Embeds int64 tokens; computes logits (..., vocabulary) from outputs (..., embed_dim) with the same vectors."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.weight, std=0.02)  # all logits start close to 0

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) if x.is_floating_point() else super().forward(x)


class FastWeightDecoder(nn.Module):
    """A decoder-only language model: token embedding, layers of attention and feed-forward, tied output.

    It has no positional encoding, so a text can have any length; under the delta and gated rules the state depends on
    the order of the tokens. The state, whose size does not depend on the text, represents everything read so far.
    Schlag et al. 2021 also carry states through a text in this way, without positions.

    Args:
        kind: a kind of :class:`FastWeightAttention` whose writes depend on their order, such as ``"gated"``; or
            ``"softmax"``, the baseline, whose state grows with the text.
        vocabulary: number of tokens.
        embed_dim, num_heads: as in :class:`FastWeightAttention`.
        num_layers: number of layers.
        ffn_dim: inner width of the feed-forward part; 4 embed_dim by default.
        dropout: dropout after the embedding and each part of a layer, in training.
        attention: other options of :class:`FastWeightAttention`.
    """

    def __init__(
        self,
        kind: str,
        vocabulary: int,
        *,
        embed_dim: int = 128,
        num_heads: int = 4,
        num_layers: int = 3,
        ffn_dim: int | None = None,
        dropout: float = 0.0,
        **attention: Any,
    ):
        super().__init__()
        self.embedding = TiedEmbedding(vocabulary, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(kind, embed_dim, num_heads, ffn_dim or 4 * embed_dim, dropout, **attention)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(embed_dim)

    def reset_parameters(self) -> None:
        """Initialises all parameters again, including those that were on the meta device."""
        reset_parts(self)

    def forward(self, tokens: Tensor, state: DecoderState | None = None) -> tuple[Tensor, DecoderState]:
        """Reads int64 tokens (B, T), continuing from a state.

        Returns:
            ``(logits, state)``: logits (B, T, vocabulary) of the token after each position, and the state of every
            layer after the last position. ``[layer.detach() for layer in state]`` cuts the gradient between two
            segments of a text, and ``[layer.select(rows) for layer in state]`` reorders the rows of the batch.
        """
        if state is not None and len(state) != len(self.layers):
            raise ValueError(f"state of {len(state)} layers, expected one of {len(self.layers)}")
        x = self.dropout(self.embedding(tokens))
        states = []
        for number, layer in enumerate(self.layers):
            x, after = layer(x, None if state is None else state[number])
            states.append(after)
        return self.embedding(self.norm(x)), tuple(states)

    def step(self, token: Tensor, state: DecoderState | None = None) -> tuple[Tensor, DecoderState]:
        """Reads one token (B,), continuing from a state; returns (logits (B, vocabulary), state)."""
        logits, state = self(token[:, None], state)
        return logits[:, 0], state

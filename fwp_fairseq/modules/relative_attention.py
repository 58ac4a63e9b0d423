"""The attention of Transformer-XL: softmax over a memory and the current segment, with relative positions."""

import math
from typing import NamedTuple

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn
from torch.nn.functional import pad

from ..numerics import state_type
from . import incremental_state as states
from .fairseq_attention import AttentionCall, FairseqAttention


class Remembered(NamedTuple):
    """The inputs that a layer keeps from the text before a segment.

    Attributes:
        inputs: (B, mem_len, C), the layer's inputs at the last positions, the latest last.
        length: (B,), the number of these positions in each row; earlier entries are not read.
    """

    inputs: Tensor
    length: Tensor


def distance_sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Computes r for the distances length - 1 to 0, (length, width): the sines of all frequencies, then the cosines."""
    dtype = state_type(like.dtype)
    distance = torch.arange(length - 1, -1, -1, device=like.device, dtype=dtype)
    frequency = 10000 ** -(torch.arange(0, width, 2, device=like.device, dtype=dtype) / width)
    angle = distance.unsqueeze(1) * frequency
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :width].to(like.dtype)


class RelativeAttention(FairseqAttention, nn.Module):
    """Causal multi-head attention of Transformer-XL (Dai et al. 2019, Sec. 3.3) with fairseq's attention interface.

    A query at position i reads the positions j <= i of the segment and of the memory before it. In each head, the score
    of j is ((q_i + u) . k_j + (q_i + v) . W_R r_(i-j)) / sqrt(d_key), where r are the :func:`distance_sinusoids`. The
    projections have no bias. u and v are (num_heads, d_key), and the model shares them among its layers.

    Cost of a segment of T tokens: T (mem_len + T) scores per head, all of which are stored.

    Args:
        embed_dim: width of inputs and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        mem_len: number of positions in the memory.
        dropout: dropout on the attention weights.
        position_dropout: dropout on r.
        q_noise, qn_block_size: fairseq's quantisation noise on the projections.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mem_len: int,
        *,
        dropout: float = 0.0,
        position_dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.mem_len = mem_len
        for name in ("k_proj", "v_proj", "q_proj", "r_proj", "out_proj"):
            projection = nn.Linear(embed_dim, embed_dim, bias=False)
            # As in fairseq's attention.
            nn.init.xavier_uniform_(projection.weight, gain=1 if name == "out_proj" else 1 / math.sqrt(2))
            self.add_quant_noise(q_noise, qn_block_size, projection)
            self.register_module(name, projection)
        self.u = nn.Parameter(torch.empty(num_heads, self.head_dim).normal_(std=0.02))
        self.v = nn.Parameter(torch.empty(num_heads, self.head_dim).normal_(std=0.02))
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)
        self.position_dropout_module = FairseqDropout(position_dropout, module_name=self.__class__.__name__)

    def attend(self, call: AttentionCall) -> tuple[Tensor, None]:
        """Computes the results of a call; keys and values are projected from the query, and attention is always causal.

        The keys and values of the last mem_len positions are kept between decoding steps, including those that
        :meth:`remember` stored.
        """
        query, key_padding_mask, incremental_state = call.query, call.key_padding_mask, call.incremental_state
        q = self._heads(self.q_proj(query))
        k, v = self._keys_and_values(query.transpose(0, 1))
        before = states.load(self, incremental_state)
        if before:
            k, v = (torch.cat([before[name], new], 1) for name, new in (("k", k), ("v", v)))
        if incremental_state is not None:
            kept = {name: x[:, max(0, x.shape[1] - self.mem_len) :] for name, x in (("k", k), ("v", v))}
            if "length" in before:
                kept["length"] = (before["length"] + len(query)).clamp(max=self.mem_len)
            states.store(self, incremental_state, kept)
        hidden = self._hidden(len(query), k.shape[1], before.get("length"), key_padding_mask, k.device)
        r = self.position_dropout_module(distance_sinusoids(k.shape[1], self.embed_dim, query))
        r = self.r_proj(r).unflatten(-1, (self.num_heads, self.head_dim))
        scores = torch.einsum("bthd,bshd->bhts", q + self.u, k)
        scores = scores + self._by_position(torch.einsum("bthd,nhd->bhtn", q + self.v, r))
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min) / math.sqrt(self.head_dim)
        weights = scores.softmax(-1, dtype=state_type(scores.dtype)).to(v.dtype)
        out = torch.einsum("bhts,bshd->tbhd", self.dropout_module(weights), v)
        return self.out_proj(out.flatten(2)), None

    def _heads(self, x: Tensor) -> Tensor:
        """Splits (T, B, C) into heads, (B, T, H, d_key)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)

    def _keys_and_values(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Projects inputs (B, L, C) to keys and values, each (B, L, H, d_key)."""
        k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)) for x in (self.k_proj(inputs), self.v_proj(inputs)))
        return k, v

    @staticmethod
    def _by_position(scores: Tensor) -> Tensor:
        """Reorders the scores of each query (B, H, T, S) from distances S - 1 to 0 to positions.

        Entries to the right of a query contain scores of other queries and must be masked.
        """
        rows, heads, queries, keys = scores.shape
        return pad(scores, (1, 0)).view(rows, heads, keys + 1, queries)[:, :, 1:].reshape(scores.shape)

    @staticmethod
    def _hidden(queries: int, keys: int, length: Tensor | None, key_padding_mask: Tensor | None, device) -> Tensor:
        """Returns a mask (B or 1, 1, T, S) of what a query does not read: the future, padding and unused memory."""
        before = keys - queries
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=device).triu(before + 1)[None, None]
        if length is not None:
            absent = torch.arange(keys, device=device) < (before - length).unsqueeze(1)
            hidden = hidden | absent[:, None, None]
        if key_padding_mask is not None:
            pads = pad(key_padding_mask[:, -queries:].bool(), (before, 0))
            hidden = hidden | pads[:, None, None]
        return hidden

    def empty_state(self, rows: int, like: Tensor) -> Remembered:
        """Returns an empty memory for inputs with the dtype and device of ``like``."""
        # It has its full size, because processes exchange their memories before a checkpoint is written.
        inputs = like.new_zeros(rows, self.mem_len, self.embed_dim)
        return Remembered(inputs, torch.zeros(rows, dtype=torch.long, device=like.device))

    def remember(self, incremental_state: dict, memory: Remembered) -> None:
        """Makes the next call with this incremental state read a memory; its keys and values get gradients."""
        k, v = self._keys_and_values(memory.inputs)
        states.store(self, incremental_state, {"k": k, "v": v, "length": memory.length})

    def remembered(self, incremental_state: dict) -> Tensor:
        """Returns the length of the memory, (B,): positions that :meth:`remember` stored and those read since then."""
        return states.load(self, incremental_state)["length"]

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, mem_len={self.mem_len}"

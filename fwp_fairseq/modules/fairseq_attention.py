"""The interface of fairseq's attention: arguments, decoding state, and time as the first dimension."""

from typing import NamedTuple

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from ..options import SiteOptions
from . import incremental_state as states


class AttentionCall(NamedTuple):
    """The arguments of one call; :meth:`FairseqAttention.forward` describes them."""

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    key_padding_mask: Tensor | None
    incremental_state: dict | None
    need_weights: bool
    static_kv: bool
    attn_mask: Tensor | None
    before_softmax: bool
    need_head_weights: bool

    @property
    def wants_weights(self) -> bool:
        return bool(self.need_weights or self.need_head_weights)

    def shown(self, weights: Tensor | None) -> Tensor | None:
        """Returns weights (H, B, T, S) as requested: unchanged, averaged over heads (B, T, S), or None."""
        if weights is None or not self.wants_weights:
            return None
        return weights if self.need_head_weights else weights.mean(0)


class FairseqAttention(FairseqIncrementalState):
    """Receives the calls of fairseq's layers, which a subclass answers in :meth:`attend`.

    Attributes:
        site: ``encoder``, ``decoder`` or ``cross``.
        options: the options of the site.
    """

    site: str
    options: SiteOptions
    num_heads: int
    head_dim: int

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends, with the arguments and shapes of ``fairseq.modules.MultiheadAttention``.

        Args:
            query: (T, B, embed_dim).
            key: (S, B, source_dim), the input of keys and values; cross-attention needs it only until it is written.
                If :func:`.incremental_state.set_source_rows` was called before decoding, it contains each source
                once, (S, N, source_dim).
            value: ignored; values are projected from ``key``.
            key_padding_mask: (B, S), True at padding.
            incremental_state: the dict in which fairseq keeps the decoding state; None outside decoding.
            need_weights: True to return weights (B, T, S) averaged over heads.
            static_kv: True if the source stays the same from step to step.
            attn_mask: (T, S), added to the scores.
            before_softmax: True to return scores instead of the output; refused if there are none.
            need_head_weights: True to return the weights of each head, (H, B, T, S).

        Returns:
            ``(out, weights)``: out (T, B, embed_dim), and the weights, or None if not requested or not available.
        """
        return self.attend(
            AttentionCall(
                query, key, value, key_padding_mask, incremental_state, need_weights, static_kv, attn_mask,
                before_softmax, need_head_weights,
            )
        )  # fmt: skip

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Computes the results of a call, as :meth:`forward` describes them."""
        raise NotImplementedError

    def swap_layout(self, x: Tensor) -> Tensor:
        """Transposes a tensor (L, B, ...) to (B, L, ...), or back."""
        return x.transpose(0, 1)

    @staticmethod
    def add_quant_noise(q_noise: float, block_size: int, *projections: nn.Module | None) -> None:
        """Adds fairseq's quantisation noise to the projections that are not None."""
        for projection in projections:
            if projection is not None:
                quant_noise(projection, q_noise, block_size)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        return states.reorder(self, incremental_state, new_order)

    def _get_input_buffer(self, incremental_state: dict | None) -> dict:
        return states.load(self, incremental_state)

    def extra_repr(self) -> str:
        return f"site={self.site}, num_heads={self.num_heads}, {self.options.describe(self.head_dim)}"

"""Multi-head attention with fast weights, batch first."""

from typing import Literal

from torch import Tensor, nn

from ..ops import FastWeights
from ..ops.backends import CHOICES as BACKENDS
from ..ops.call import RULES, Rule
from .heads import Heads
from .site_config import (
    BETA_RANGES,
    DIRECTIONS,
    FAST_NETS,
    NORMALIZERS,
    OUTPUT_NORMS,
    PASSES,
    QK_NORMS,
    RECURRENT,
    SiteConfig,
)

_CHOICES = {
    "update_rule": RULES,
    "normalizer": ("auto", *NORMALIZERS),
    "qk_norm": QK_NORMS,
    "output_norm": OUTPUT_NORMS,
    "fast_net": tuple(FAST_NETS),
    "recurrent": RECURRENT,
    "beta_range": tuple(BETA_RANGES),
    "directions": DIRECTIONS,
    "passes": PASSES,
    "backend": BACKENDS,
}


class FastWeightAttention(Heads):
    """Attention whose memory is one matrix W per head, in place of all earlier keys and values.

    With q, k, v projected from the input and phi the feature map, a position writes W <- W + v phi(k)^T under the rule
    ``sum`` (``delta`` first takes away beta times what the key held, ``gated`` lets everything decay, ``gated_delta``
    does both) and reads W phi(q), divided as the normaliser says (Schlag et al. 2021, Eq. 17-28; docs/equations.md has
    all of them). Queries are not scaled by d_key^-1/2. :class:`Heads` names the parameters.

    Args:
        embed_dim: width of input and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        causal: True for a decoder, in which a position reads after its own write; False for an encoder or for
            cross-attention, where everything is written first.
        feature_map: elu, dpfp, favor, rfa, relu, t2r, hedgehog or identity.
        d_dot: features per head; None for the map's natural width.
        update_rule: sum, delta, gated or gated_delta.
        normalizer: attention, sum, both, none or l2; auto is the paper's choice for the rule.
        qk_norm: ``l2`` gives queries and keys a learned length.
        output_norm: ``rms`` divides what a head reads by its root mean square, in place of a denominator.
        fast_net: what is written at each position, in place of one matrix (``linear``): ``rnn``, ``lstm``, ``mlp`` or
            ``delta`` (Irie et al. 2021) with the rule delta, ``fwp1991`` with the rule sum; docs/recurrent.md. Causal.
        fast_net_depth: blocks of the net mlp; 1 by default.
        recurrent: ``tanh`` or ``softmax`` feeds what was read back into the next position's q, k, v and beta.
        beta_range: ``0-2`` lets a write of the delta and gated_delta rules go beyond the new value; meant for keys of
            length 1 (``normalizer="l2"``).
        directions: of random features (favor, rfa): ``fixed`` uses in training those of evaluation.
        window: the latest so many positions are read by a softmax, and only those before them through W; causal, with
            the rule sum.
        passes: ``both-ways`` lets half of the heads write and read from the first position to the last, the others from
            the last to the first; not causal, without a state, with a rule other than sum and an even number of heads.
        source_dim: width of the source of cross-attention; embed_dim by default.
        dropout: share of the values read that training drops.
        backend: auto, native (compiled), chunked (matrix products in PyTorch) or reference (time loops).

    Raises:
        ValueError: an option is unknown, the map cannot have this width, or two options contradict each other.

    Cost per position and head: d_dot d_value multiplications for a write, and as many for a read; up to 128 positions
    the causal form computes the products of all pairs instead, which is cheaper. A state holds d_dot (d_value + 1)
    numbers per head, however long the text.

    Random features (favor, rfa) are the same in every call until ``layer.feature_map.set_num_updates(n)`` draws others
    for training, unless ``directions`` are fixed. Evaluation keeps one draw, which is saved with the module.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool = True,
        feature_map: str = "dpfp",
        d_dot: int | None = None,
        update_rule: Rule = "sum",
        normalizer: Literal["auto", "attention", "sum", "both", "none", "l2"] = "auto",
        qk_norm: Literal["none", "l2"] = "none",
        output_norm: Literal["none", "rms"] = "none",
        fast_net: Literal["linear", "rnn", "lstm", "mlp", "delta", "fwp1991"] = "linear",
        fast_net_depth: int | None = None,
        recurrent: Literal["none", "tanh", "softmax"] = "none",
        beta_range: Literal["0-1", "0-2"] = "0-1",
        window: int | None = None,
        directions: Literal["redrawn", "fixed"] = "redrawn",
        passes: Literal["one", "both-ways"] = "one",
        source_dim: int | None = None,
        dropout: float = 0.0,
        backend: Literal["auto", "native", "chunked", "reference"] = "auto",
    ):
        config = SiteConfig(
            feature_map, d_dot, update_rule, normalizer, backend, qk_norm, output_norm, beta_range, fast_net,
            fast_net_depth, recurrent, window, directions, passes,
        )  # fmt: skip
        for option, choices in _CHOICES.items():
            if getattr(config, option) not in choices:
                raise ValueError(f"{option} = {getattr(config, option)!r}, expected one of {', '.join(choices)}")
        super().__init__(
            embed_dim, num_heads, causal=causal, config=config, dropout=nn.Dropout(dropout), source_dim=source_dim
        )
        if contradiction := config.contradiction("decoder" if causal else "encoder"):
            given = " contradicts ".join(f"{name} = {getattr(config, name)!r}" for name in contradiction.options)
            raise ValueError(f"{given}: {contradiction.why}; expected {contradiction.expected}")

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        state: FastWeights | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, FastWeights | None]:
        """Writes ``source``, or x itself, on top of a state, and reads with every position of x.

        Args:
            x: (B, T, embed_dim).
            source: (B, S, source_dim), which cross-attention writes; only with ``causal=False``.
            state: what was written before; None for nothing. It is not modified, and gradients reach it.
            key_padding_mask: (B, S), bool, True at pads, which write nothing.

        Returns:
            ``(out, state)``, out (B, T, embed_dim), and the state after the last write:
            W (B, H, d_dot, d_value), z (B, H, d_dot) or None; float32 for half precision. That
            of a fast net or a window is W (B, H, N, 1), all that is carried. None with both-ways passes.
        """
        if source is not None and self.causal:
            raise ValueError("source is given to causal attention, expected None: it writes its own input")
        if self.has_both_ways and not (source is None and state is None):
            given = "source" if state is None else "state"
            raise ValueError(
                f"{given} contradicts passes = 'both-ways', which goes through one whole input; expected None"
            )
        if self.fast_net is not None:
            out, state = self._run_fast_net(x, key_padding_mask, state, return_state=True)
            return self._output(out, x), state
        written = self._project(x if source is None else source, key_padding_mask)
        out, state = self._operate(
            self._project_queries(x),
            *written,
            key_padding_mask,
            initial_state=state,
            return_state=not self.has_both_ways,
        )
        return self._output(out, x), state

    def read(self, x: Tensor, state: FastWeights) -> Tensor:
        """What attention that is not causal reads from a state with x (B, T, embed_dim); nothing is written."""
        if self.causal:
            raise ValueError("read is for attention with causal=False; causal attention writes what it reads with")
        if self.has_both_ways:
            raise ValueError("read is for attention with a state, which passes = 'both-ways' has not")
        q = self._project_queries(x)
        return self._output(self._operate(q, *self._nothing_to_write(q), None, initial_state=state)[0], x)

    def step(self, x: Tensor, state: FastWeights | None = None) -> tuple[Tensor, FastWeights]:
        """Continues causal attention by one position, x (B, embed_dim): (out (B, embed_dim), state)."""
        if not self.causal:
            raise ValueError("step is for attention with causal=True; read takes the state that forward returned")
        out, state = self(x[:, None], state=state)
        return out[:, 0], state

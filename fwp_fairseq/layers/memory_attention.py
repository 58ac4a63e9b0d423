"""What layers and fairseq modules with a memory share: projections, norms and one memory.

Subclasses provide ``forward``.
"""

import math

import torch
from torch import Tensor

from ..feature_maps import FeatureMap
from ..memories import Features, Memory, Sizes, State
from ..ops.call import CORRECTING, DECAYING
from ..ops.state import checked, zeros
from ..options import SiteOptions
from .head_norm import HeadNorm
from .projections import Projections, head_width
from .query_key_norm import QueryKeyNorm
from .short_convolution import CONVOLVED, STATES, History


class MemoryAttention(Projections):
    """Projects inputs to the queries, keys, values and gates of a memory, and the memory's output to the result.

    :class:`.attention.FastWeightAttention` is called like a layer, and :class:`..modules.FastWeightSiteAttention` like
    fairseq's attention. Inputs have the layout of the caller; tensors of heads are batch-first.

    Attributes:
        State: the named tuple that one call passes to the next.
        keeps_history: True if the state also contains the latest projections, which causal convolutions read.

    Parameters: those of the projections, of ``memory``, and of the chosen norms: one scale per head in ``qk_norm`` and
    one weight per value in ``output_norm``. A subclass sets ``dropout_module``, which drops elements of the values that
    are read.

    Args:
        options: the options of the site, checked.
        embed_dim, num_heads, causal, source_dim: as in :class:`Projections`.

    Raises:
        ValueError: the map cannot have this width, or num_heads does not divide embed_dim, or is odd with both-ways.
    """

    def __init__(
        self, options: SiteOptions, embed_dim: int, num_heads: int, *, causal: bool, source_dim: int | None = None
    ):
        # Random numbers are drawn in this order: features; gates and other parts of the memory; projections; beta once
        # more (`start_beta`). The projections are drawn in the order of fairseq's own module, so that the same seed
        # initialises both alike if the memory draws nothing.
        features = Features(options, head_width(embed_dim, num_heads), num_heads)
        super().__init__(embed_dim, num_heads, causal=causal, source_dim=source_dim)
        self.options, self.has_both_ways = options, options.passes == "both-ways"
        if self.has_both_ways and num_heads % 2:
            raise ValueError(f"passes = 'both-ways' needs an even number of heads, got num_heads = {num_heads}")
        sizes = Sizes(self.source_dim, num_heads, self.head_dim, causal, self.gain)
        self.memory: Memory = options.memory(options, features, sizes)
        self.keeps_history = causal and options.conv_size is not None
        self.State = STATES[self.memory.State] if self.keeps_history else self.memory.State
        self.qk_norm = self.output_norm = None
        if options.qk_norm == "l2":
            self.qk_norm = QueryKeyNorm(num_heads, self.head_dim, self._variance())
        if options.output_norm == "rms":
            self.output_norm = HeadNorm(num_heads, self.head_dim)
        self.start_projections(options.conv_size)
        self.memory.start_beta()

    def _variance(self) -> float:
        """Returns the variance of an entry of q and k at initialisation, for inputs of variance 1.

        Xavier weights have variance 2 gain^2 / (inputs + outputs). With inputs of width embed_dim (queries) and
        source_dim (keys), an entry of q has variance gain^2, and an entry of k has gain^2 2 source_dim / (source_dim +
        embed_dim); the result is their geometric mean.
        """
        return self.gain**2 * math.sqrt(2 * self.source_dim / (self.source_dim + self.embed_dim))

    @property
    def feature_map(self) -> FeatureMap:
        """Returns the feature map of the keys."""
        return self.memory.features.feature_map

    def queries(self, x: Tensor, pads: Tensor | None = None, history: History | None = None) -> Tensor:
        """Projects x to queries (B, T, H, d_key); ``pads`` and ``history`` are as in :meth:`project`."""
        return self._normalised(self.project("q", x, pads, history))

    def writes(
        self, source: Tensor, pads: Tensor | None = None, history: History | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Computes keys and values, (B, S, H, d_key), and a dict with the gates, (B, S, H), and parts of a fast net."""
        k = self._normalised(self.project("k", source, pads, history))
        v = self.project("v", source, pads, history)
        only_sums = self.options.update_rule not in CORRECTING + DECAYING
        if self.output_norm is not None and only_sums and v.dtype == torch.float16:
            v = v.float()  # outputs have the dtype of v, and grow with the text until the norm divides them
        return k, v, {name: self.swap_layout(part) for name, part in self.memory("parts", source).items()}

    def output(self, out: Tensor, x: Tensor) -> Tensor:
        """Projects the outputs of heads, (B, T, H, d_value), to the result, in the layout and dtype of the input x."""
        if self.output_norm is not None:
            out = self.output_norm(out)
        # It has the dtype of the values, which `writes` or autocast may have made another than that of x.
        out = self.swap_layout(out).reshape(x.shape).to(x.dtype)
        return self.out_proj(self.dropout_module(out))

    def weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None = None) -> Tensor | None:
        """Computes attention weights (B, H, T, S) from projected queries and keys; None if the memory has none."""
        return self.memory("weights", self._normalised(q), self._normalised(k), key_padding_mask)

    def _normalised(self, x: Tensor) -> Tensor:
        """Applies the norm of queries and keys, if there is one, to x (B, L, H, d_key)."""
        return x if self.qk_norm is None else self.qk_norm(x)

    def empty_state(self, rows: int, like: Tensor) -> State:
        """Returns an empty state for inputs with the dtype and device of ``like``."""
        return zeros(self._state_shapes(), rows, like)

    def _state_shapes(self) -> State:
        history = [(self.options.conv_size - 1, self.embed_dim)] * len(CONVOLVED) if self.keeps_history else []
        return self.State(*self.memory.state_shapes(), *history)

    def split_state(self, state: State | None, like: Tensor) -> tuple[State | None, History]:
        """Splits a state into that of the memory and the earlier projections; a state of None gives None and {}.

        Raises ValueError unless the state fits this attention and the rows and device of ``like``, (B, ...).
        """
        if state is None:
            return None, {}
        state = checked(state, self._state_shapes(), like)
        length = len(self.memory.State._fields)
        return self.memory.State(*state[:length]), dict(zip(CONVOLVED, state[length:], strict=False))

    def join_state(self, held: State, history: History) -> State:
        """Joins the two parts of a state that :meth:`split_state` returned."""
        return self.State(*held, *(history[name] for name in CONVOLVED)) if self.keeps_history else held

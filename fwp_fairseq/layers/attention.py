"""Multi-head attention with fast weights as a batch-first layer that takes and returns a state."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contradictions import contradiction
from ..feature_maps import FEATURE_MAPS
from ..kinds import known_kind
from ..memories import State
from ..memories.start import reset_parts
from ..options import OPTIONS, SiteOptions
from .memory_attention import MemoryAttention

_BOTH_WAYS = "contradicts passes = 'both-ways', which takes neither a source nor a state; expected None"


class FastWeightAttention(MemoryAttention):
    """Attends with a memory of fixed size instead of all earlier keys and values.

    Each position projects its input to q, k and v, writes to a matrix W, and reads W phi(q), divided as the normaliser
    says; phi is the feature map. The update rule ``sum`` writes W <- W + v phi(k)^T. ``delta`` writes beta (v - old
    value of the key) instead of v; under ``gated``, all earlier content decays; ``gated_delta`` combines both (Schlag
    et al. 2021, Eq. 17-28; docs/equations.md has all equations). For the other memories see :mod:`..memories`. Queries
    are not scaled by d_key^-1/2.

    Parameters: q_proj, k_proj, v_proj and out_proj with bias, named and initialised as in fairseq's attention; if
    chosen, one scale per head in ``qk_norm`` and one weight per value in ``output_norm``; those of ``memory``; with
    ``conv_size``, those of the short convolutions ``q_conv``, ``k_conv`` and ``v_conv``.

    Args:
        kind: the name of a kind of attention (:data:`..kinds.KINDS`), such as ``"delta"``, or a
            :class:`.SiteOptions`.
        embed_dim: width of input and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        causal: True for a decoder, in which a position reads right after its own write; False for an encoder or
            cross-attention, in which everything is written first.
        source_dim: width of the source of cross-attention; embed_dim by default.
        dropout: dropout on the values that are read.
        options: options that differ from those of the kind, for example ``window=8``, by their names in
            :mod:`..options`; docs/flags.md lists them.

    Raises:
        TypeError: an option has an unknown name.
        ValueError: the kind is unknown or softmax, an option has an invalid value, the map cannot have this width, or
            two options contradict each other.

    Cost per position and head of a matrix: d_dot d_value multiplications for a write, as many for a read, and, under
    the delta rules, as many to read the old value. Up to 128 positions, the causal form computes the products of all
    pairs instead, which is cheaper. A state has d_dot d_value numbers per head, and d_dot more if outputs are
    normalised, for a text of any length. For windows and fast nets see :mod:`..memories`.

    The maps favor and rfa have random directions. Their method ``set_num_updates(n)``, which fairseq calls before each
    update, draws new ones for training unless ``directions`` is ``fixed``; without such calls they stay the same.
    Evaluation always uses one draw, which is saved with the module. A state can only be read with the directions with
    which it was written.
    """

    def __init__(
        self,
        kind: str | SiteOptions,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool = True,
        source_dim: int | None = None,
        dropout: float = 0.0,
        **options: Any,
    ):
        options = checked_options(kind, options, causal)
        if source_dim not in (None, embed_dim):
            _refuse_source(options, f"source_dim = {source_dim}")
        super().__init__(options, embed_dim, num_heads, causal=causal, source_dim=source_dim)
        self.dropout_module = nn.Dropout(dropout)

    def reset_parameters(self) -> None:
        """Initialises all parameters again, including those that were on the meta device."""
        reset_parts(self)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        state: State | None = None,
        key_padding_mask: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """Writes ``source``, or x itself, to a state, and reads with every position of x.

        Args:
            x: (B, T, embed_dim).
            source: (B, S, source_dim), which cross-attention writes; only with ``causal=False``.
            state: the state before the first position; None for an empty one. It is not modified, but gets gradients.
            key_padding_mask: (B, S), bool, True at padding, which writes nothing and may hold NaN.
            return_state: False to skip the state, which for a short input can cost more than the output.

        Returns:
            ``(out, state)``: out (B, T, embed_dim), and the state after the last write, a named tuple, in float32 for
            half precision. The state of a matrix is W (B, H, d_dot, d_value) and z (B, H, d_dot) or None; causal
            convolutions add the conv_size - 1 latest projections. The state is None with both-ways passes or without
            ``return_state``.

        Raises:
            ValueError: an input or the mask has a wrong shape or dtype, the state is of another kind or shape, or this
                attention takes no source or no state.
        """
        if self.has_both_ways and state is not None:
            raise ValueError(f"state {_BOTH_WAYS}")
        x, written = self.checked_inputs(x, source, key_padding_mask)
        if source is not None and (source.shape[1] or self.has_both_ways):  # `read` passes an empty one
            _refuse_source(self.options, "source")
        if source is None and not x.shape[1]:  # one position of padding, so that parameters get gradients
            pads, padded = x.new_ones(x.shape[0], 1, dtype=torch.bool), F.pad(x, (0, 0, 0, 1))
            out, state = self.forward(padded, state=state, key_padding_mask=pads, return_state=return_state)
            return out[:, :0], state
        held, history = self.split_state(state, x)
        out, held = self.memory(
            "attend",
            self.queries(x, key_padding_mask if source is None else None, history),
            *self.writes(written, key_padding_mask, history),
            key_padding_mask=key_padding_mask,
            state=held,
            return_state=return_state and not self.has_both_ways,
        )
        return self.output(out, x), None if held is None else self.join_state(held, history)

    def read(self, x: Tensor, state: State) -> Tensor:
        """Reads from a state with x (B, T, embed_dim), without writing; only with ``causal=False``.

        Convolutions see this x alone, so with ``conv_size``, x must be the whole input.
        """
        if self.has_both_ways:
            raise ValueError("read needs a state, and attention with passes = 'both-ways' has none")
        self.check_read(x, state)
        # This calls the module with an empty source, so that hooks that prepare its parameters run.
        nothing = x.new_empty(x.shape[0], 0, self.source_dim)
        return self(x, nothing, state=state, return_state=False)[0]

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Processes one more position x (B, embed_dim) of causal attention; returns (out (B, embed_dim), state)."""
        if not self.causal:
            raise ValueError("step is for attention with causal=True; read takes the state that forward returned")
        out, state = self(x[:, None], state=state)
        return out[:, 0], state


def _refuse_source(options: SiteOptions, what: str) -> None:
    """Raises ValueError for a source (``what``) if these options allow self-attention alone."""
    if options.passes == "both-ways":
        raise ValueError(f"{what} {_BOTH_WAYS}")
    if options.conv_size is not None:
        raise ValueError(
            f"{what} contradicts conv_size = {options.conv_size}, an option of self-attention; expected None"
        )


def checked_options(kind: str | SiteOptions, options: dict[str, Any], causal: bool) -> SiteOptions:
    """Returns the options of a layer: those of the kind, updated with ``options``.

    Raises TypeError for an unknown name, and ValueError for an invalid value or a contradiction.
    """
    options = (known_kind(kind).options if isinstance(kind, str) else vars(kind)) | options
    for name, value in options.items():
        if name not in OPTIONS:
            raise TypeError(f"argument {name!r} is unknown, expected some of {', '.join(OPTIONS)}")
        option = OPTIONS[name]
        if name == "feature_map":  # unlike flags, layers accept "identity" and refuse "softmax"
            option = option._replace(values=dict.fromkeys(FEATURE_MAPS, ""))
        if (expected := option.expected(value)) is not None:
            raise ValueError(f"{name} = {value!r}, expected {expected}")
    checked = SiteOptions(**options)
    if wrong := contradiction(checked, "decoder" if causal else "encoder"):
        conflict = " contradicts ".join(f"{name} = {getattr(checked, name)!r}" for name in wrong.options)
        raise ValueError(f"{conflict}: {wrong.why}; expected {wrong.expected}")
    return checked

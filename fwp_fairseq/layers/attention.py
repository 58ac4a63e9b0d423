"""Multi-head attention with fast weights: projections, norms and one memory."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..contradictions import contradiction
from ..feature_maps import FEATURE_MAPS, FeatureMap
from ..kinds import known_kind
from ..memories import Features, Memory, Sizes, State, build_memory
from ..memories.start import reset_parts
from ..ops.state import checked, zeros
from ..options import OPTIONS, SiteOptions
from .head_norm import HeadNorm
from .projections import projection_gain, start_projections
from .query_key_norm import QueryKeyNorm
from .short_convolution import CONVOLVED, STATES, History, ShortConvolution


class FastWeightAttention(nn.Module):
    """Attention whose memory has a fixed size, in place of all earlier keys and values.

    With q, k, v projected from the input and phi the feature map, a position writes W <- W + v phi(k)^T under the rule
    ``sum`` (``delta`` first takes away beta times what the key held, ``gated`` lets everything decay, ``gated_delta``
    does both) and reads W phi(q), divided as the normaliser says (Schlag et al. 2021, Eq. 17-28; docs/equations.md has
    all of them). :mod:`..memories` has the other memories. Queries are not scaled by d_key^-1/2.

    Attributes:
        State: the named tuple that one call hands to the next.
        keeps_history: whether it has the inputs of convolutions.

    Parameters: q_proj, k_proj, v_proj and out_proj with bias, named and initialised as in fairseq's attention; one
    scale per head in ``qk_norm`` and one weight per value in ``output_norm``, if chosen; those of ``memory``; with
    ``conv_size`` those of the short convolutions ``q_conv``, ``k_conv`` and ``v_conv``.

    Args:
        kind: a kind of attention by name (:data:`..kinds.KINDS`), such as ``"delta"``; or all options of a site.
        embed_dim: width of input and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        causal: True for a decoder, in which a position reads after its own write; False for an encoder or for
            cross-attention, where everything is written first.
        source_dim: width of the source of cross-attention; embed_dim by default.
        dropout: share of the values read that training drops.
        options: those in which the layer differs from the kind, by the names of :mod:`..options`, which docs/layers.md
            lists, e.g. ``window=8``.

    Raises:
        TypeError: an option has an unknown name.
        ValueError: the kind is unknown or softmax, an option has an unknown value, the map cannot have this width, or
            two options contradict each other.

    Cost per position and head: d_dot d_value multiplications for a write, and as many for a read; up to 128 positions
    the causal form computes the products of all pairs instead, which is cheaper. A state holds d_dot (d_value + 1)
    numbers per head, however long the text.

    Random features (favor, rfa) are the same in every call until ``set_num_updates(n)`` of each module that has it
    draws others for training, as fairseq does before an update, unless ``directions`` are fixed. Only the directions
    that a state was written with can read it. Evaluation keeps one draw, which is saved with the module.
    """

    batch_first = True

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
        super().__init__()
        options = checked_options(kind, options, causal)
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim = {embed_dim} is not divisible by num_heads = {num_heads}")
        both_ways = options.passes == "both-ways"
        if both_ways and num_heads % 2:
            raise ValueError(f"passes = 'both-ways' needs an even number of heads, got num_heads = {num_heads}")
        if (causal or both_ways) and source_dim not in (None, embed_dim):
            why = "passes = 'both-ways'" if both_ways else "causal = True"
            raise ValueError(f"source_dim = {source_dim} contradicts {why}, which has no source; expected None")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.source_dim, self.causal, self.options = source_dim or embed_dim, causal, options
        self.gain = projection_gain(self.source_dim, embed_dim)
        # Random numbers are drawn in this order: features, then projections as fairseq's own module draws them, so that
        # the same seed initialises both alike, then the rest of the memory.
        features = Features(options, self.head_dim, num_heads)
        self.k_proj = nn.Linear(self.source_dim, embed_dim)
        self.v_proj = nn.Linear(self.source_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        sizes = Sizes(self.source_dim, num_heads, self.head_dim, causal, self.gain)
        self.memory: Memory = build_memory(options, features, sizes)
        self.keeps_history = causal and options.conv_size is not None
        self.State = STATES[self.memory.State] if self.keeps_history else self.memory.State
        self.qk_norm = None if options.qk_norm == "none" else QueryKeyNorm(num_heads, self.head_dim, self._variance())
        self.output_norm = None if options.output_norm == "none" else HeadNorm(num_heads, self.head_dim)
        for name in CONVOLVED:
            size = options.conv_size
            conv = None if size is None else ShortConvolution(embed_dim, size, causal)
            self.register_module(f"{name}_conv", conv)
        self.dropout_module = nn.Dropout(dropout)
        start_projections(self, self.gain)
        self.memory.start_strengths()

    def _variance(self) -> float:
        """The variance of an entry of q and k at initialisation, for inputs of variance 1."""
        # Xavier's weights have the variance 2 gain^2 / (inputs + outputs): gain^2 of a query, more or less of a key.
        return self.gain**2 * math.sqrt(2 * self.source_dim / (self.source_dim + self.embed_dim))

    def reset_parameters(self) -> None:
        """Draws all parameters anew, also those that were on the meta device."""
        reset_parts(self)

    @property
    def feature_map(self) -> FeatureMap:
        """phi of the keys."""
        return self.memory.features.feature_map

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        state: State | None = None,
        key_padding_mask: Tensor | None = None,
        return_state: bool = True,
    ) -> tuple[Tensor, State | None]:
        """Writes ``source``, or x itself, on top of a state, and reads with every position of x.

        Args:
            x: (B, T, embed_dim).
            source: (B, S, source_dim), which cross-attention writes; only with ``causal=False``.
            state: what was written before; None for nothing. It is not modified, and gradients reach it.
            key_padding_mask: (B, S), bool, True at pads, which write nothing.
            return_state: whether the state is needed; building it for a short input can cost more than the output.

        Returns:
            ``(out, state)``, out (B, T, embed_dim), and the state after the last write, a named tuple of the memory's:
            W (B, H, d_dot, d_value) and z (B, H, d_dot) or None of a matrix; float32 for half precision. With
            convolutions of causal attention it also has the conv_size - 1 latest projections. None with both-ways
            passes.
        """
        if source is not None and self.causal:
            raise ValueError("source is given to causal attention, expected None: it writes its own input")
        both_ways = self.options.passes == "both-ways"
        if both_ways and not (source is None and state is None):
            given = "source" if state is None else "state"
            raise ValueError(
                f"{given} contradicts passes = 'both-ways', which goes through one whole input; expected None"
            )
        self._check_input("x", x, self.embed_dim)
        written = x if source is None else source
        self._check_input("source", written, self.source_dim)
        self._check_mask(key_padding_mask, written)
        held, history = self.parted(state, self._rows(x))
        out, held = self.memory(
            "attend",
            self.queries(x, key_padding_mask if source is None else None, history),
            *self.writes(written, key_padding_mask, history),
            key_padding_mask=key_padding_mask,
            state=held,
            return_state=return_state and not both_ways,
        )
        return self.output(out, x), None if held is None else self.joined(held, history)

    def read(self, x: Tensor, state: State) -> Tensor:
        """What attention that is not causal reads from a state with x (B, T, embed_dim); nothing is written."""
        if self.causal:
            raise ValueError("read is for attention with causal=False; causal attention writes what it reads with")
        if self.options.passes == "both-ways":
            raise ValueError("read is for attention with a state, which passes = 'both-ways' has not")
        self._check_input("x", x, self.embed_dim)
        # A call of the module, as all that needs its parameters is, which writes a source of no positions.
        nothing = x.new_empty(*((len(x), 0) if self.batch_first else (0, x.shape[1])), self.source_dim)
        return self(x, nothing, state=state, return_state=False)[0]

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continues causal attention by one position, x (B, embed_dim): (out (B, embed_dim), state)."""
        if not self.causal:
            raise ValueError("step is for attention with causal=True; read takes the state that forward returned")
        out, state = self(x[:, None], state=state)
        return out[:, 0], state

    def nothing_written(self, rows: int, like: Tensor) -> State:
        """Returns the state before anything is written, for inputs of the type and device of ``like``."""
        return zeros(self._state_shapes(), rows, like)

    def _state_shapes(self) -> State:
        history = [(self.options.conv_size - 1, self.embed_dim)] * len(CONVOLVED) if self.keeps_history else []
        return self.State(*self.memory.state_shapes(), *history)

    def parted(self, state: State | None, rows: int) -> tuple[State | None, History]:
        """The memory's state, and what came before by projection; both of nothing if the state is None."""
        if state is None:
            return None, {}
        state = checked(state, self._state_shapes(), rows)
        length = len(self.memory.State._fields)
        return self.memory.State(*state[:length]), dict(zip(CONVOLVED, state[length:], strict=False))

    def joined(self, held: State, history: History) -> State:
        """The state of which :meth:`parted` makes these parts."""
        return self.State(*held, *(history[name] for name in CONVOLVED)) if self.keeps_history else held

    def heads(self, x: Tensor, source: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q of x, k and v of the source as they are projected and convolved: (B, T or S, H, d_key)."""
        of_x = key_padding_mask if x is source else None
        k, v = (self._projected(name, source, key_padding_mask, {}) for name in ("k", "v"))
        return self._projected("q", x, of_x, {}), k, v

    def weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None = None) -> Tensor | None:
        """What projected queries read of each position, (B, H, T, S), in shares of 1; None if a fast net reads."""
        q, k = self.memory("queries", self._normed(q)), self.memory("keys", self._normed(k))
        return self.memory("weights", q, k, key_padding_mask)

    def queries(self, x: Tensor, pads: Tensor | None = None, history: History | None = None) -> Tensor:
        """What the memory takes of inputs that read.

        ``pads`` (B, T) and ``history`` are for convolutions: history has what came before x, if anything, and is given
        what comes before the next positions.
        """
        return self.memory("queries", self._normed(self._projected("q", x, pads, {} if history is None else history)))

    def writes(
        self, source: Tensor, pads: Tensor | None = None, history: History | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """What the memory takes of inputs that write: keys, values, and further parts by name."""
        history = {} if history is None else history
        k = self.memory("keys", self._normed(self._projected("k", source, pads, history)))
        v = self._projected("v", source, pads, history)
        return k, v, {name: self._batch_first(part) for name, part in self.memory("parts", source).items()}

    def output(self, out: Tensor, x: Tensor) -> Tensor:
        """From what the heads read, (B, T, H, d_value), to the result for inputs x, in their layout and type."""
        if self.output_norm is not None:
            out = self.output_norm(out)
        out = self._batch_first(out).reshape(x.shape).to(x.dtype)  # features are float32 where x is half
        return self.out_proj(self.dropout_module(out))

    def _normed(self, x: Tensor) -> Tensor:
        """Projected queries or keys (B, L, H, d_key), of a learned length if the site has one."""
        return x if self.qk_norm is None else self.qk_norm(x)

    def _projected(self, name: str, x: Tensor, pads: Tensor | None, history: History) -> Tensor:
        """q, k or v (B, L, H, d_key) of inputs in the caller's layout."""
        y, conv = self.get_submodule(f"{name}_proj")(x), getattr(self, f"{name}_conv")
        if conv is not None:
            y, after = conv(self._batch_first(y), history.get(name), pads)
            y = self._batch_first(y)
            if after is not None:
                history[name] = after
        # The heads are split in the layout of the projection, so that its gradient comes in this layout too.
        return self._batch_first(y.unflatten(-1, (self.num_heads, self.head_dim)))

    def _batch_first(self, x: Tensor) -> Tensor:
        """(B, L, ...) of the caller's layout, or the other way round."""
        return x if self.batch_first else x.transpose(0, 1)

    def _rows(self, x: Tensor) -> int:
        return x.shape[0 if self.batch_first else 1]

    @staticmethod
    def _check_input(name: str, x: Tensor, width: int) -> None:
        if x.dim() != 3 or x.shape[2] != width:
            raise ValueError(f"{name} is of shape {tuple(x.shape)}, expected 3 dimensions, the last one of {width}")

    def _check_mask(self, mask: Tensor | None, source: Tensor) -> None:
        if mask is None:
            return
        shape = tuple(source.shape[:2] if self.batch_first else source.shape[1::-1])
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != shape:
            given = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"key_padding_mask is {given}, expected torch.bool {shape}, True at pads")


def checked_options(kind: str | SiteOptions, options: dict[str, Any], causal: bool) -> SiteOptions:
    """The options of a layer; TypeError for an unknown name, ValueError for an unknown value or a contradiction."""
    options = (known_kind(kind).options if isinstance(kind, str) else vars(kind)) | options
    for name, value in options.items():
        if name not in OPTIONS:
            raise TypeError(f"argument {name!r} is unknown, expected some of {', '.join(OPTIONS)}")
        option = OPTIONS[name]
        if name == "feature_map":  # layers have the identity, and no softmax
            option = option._replace(values=dict.fromkeys(FEATURE_MAPS, ""))
        if (expected := option.expected(value)) is not None:
            raise ValueError(f"{name} = {value!r}, expected {expected}")
    found = SiteOptions(**options)
    if wrong := contradiction(found, "decoder" if causal else "encoder"):
        given = " contradicts ".join(f"{name} = {getattr(found, name)!r}" for name in wrong.options)
        raise ValueError(f"{given}: {wrong.why}; expected {wrong.expected}")
    return found

"""The base class of memories: what attention keeps of the positions that it has processed."""

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..numerics import state_type
from ..ops import GATES, FastWeights
from ..ops.state import State, select, zeros
from ..option import BETA_RANGES, Contradiction, Option, Options
from .decay import Decay
from .features import Features
from .start import small, start

# The inputs of each position by name, (B, L, H) or (B, L, H, width): gates and, in fast nets, further parts.
Parts = dict[str, Tensor]


class Reorderable(Protocol):
    """A cache from which lazy decoding reads (:class:`Memory`)."""

    def reorder(self, order: Tensor) -> None:
        """Replaces row i by row order[i]; ``order`` may have any length."""


# The result of a decoding step, from which the next step continues.
Held = State | Reorderable


class Sizes(NamedTuple):
    """The sizes of an attention site.

    Attributes:
        source_dim: width of the input from which keys and values are projected.
        heads: number of heads.
        d_key: width of the queries, keys, values and outputs of a head.
        causal: True in the decoder, where a position reads right after its own write; False where it reads after
            everything has been written. In the encoder it is False even with ``passes=both-ways``.
        gain: the gain of the Xavier initialisation of the site's projections.
    """

    source_dim: int
    heads: int
    d_key: int
    causal: bool
    gain: float


class Memory(nn.Module):
    """Writes key-value pairs and reads with queries; each attention site has one memory.

    A subclass defines :attr:`State`, the named tuple that it carries from one call to the next, :meth:`state_shapes`,
    :meth:`attend`, and :meth:`weights` if it can say how much a query reads of each position. If it decodes lazily,
    from a cache of recent keys instead of a state, it also defines :meth:`decodes_lazily`, :meth:`_step` and, for
    cross-attention, :meth:`_write` and :meth:`_read`. Flags, layers and models find it through :meth:`options_read`
    (the options that it adds to the table), :meth:`chosen_by` and :meth:`contradictions`.

    Callers run methods that compute, such as :meth:`attend` and :meth:`step`, by calling the module with their name,
    ``memory("attend", q, k, v, parts)``, because hooks that prepare parameters (pruning, weight norm, FSDP) run before
    a call but not before a method.

    Parameters: ``beta_proj`` computes one beta per head and position from the input of the keys, for every rule except
    the sum rule; ``decay`` computes alpha for the gated delta rule; ``features`` has the parameters of learned maps.

    Attributes:
        accumulates_keys: whether the memory sums its keys, as the normaliser ``attention`` requires.
        slow: the projection that computes the additional parts of a fast net; None in other memories.
    """

    State: ClassVar[Any] = FastWeights
    accumulates_keys: ClassVar[bool] = True

    def __init__(self, options: Options, features: Features, sizes: Sizes):
        super().__init__()
        self.options, self.features, self.sizes = options, features, sizes
        gates = GATES[options.update_rule]
        # In the papers, the write strengths of the delta rules have no bias, and the gate of Peng et al. has one.
        bias = options.update_rule == "gated"
        self.beta_proj = nn.Linear(sizes.source_dim, sizes.heads, bias=bias) if "beta" in gates else None
        self.decay = Decay(sizes.source_dim, sizes.heads) if "alpha" in gates else None
        self.slow: nn.Linear | None = None

    @classmethod
    def options_read(cls) -> tuple[Option, ...]:
        """Returns the options, as rows of their table, that choose this memory or that only it reads."""
        return ()

    @classmethod
    def chosen_by(cls, options: Options) -> str | None:
        """Returns the name of the option that chooses this memory, or None if it is not chosen."""
        return None

    @classmethod
    def contradictions(cls, options: Options) -> Iterator[Contradiction]:
        """Yields the contradictions between this memory, which ``options`` choose, and other options."""
        yield from ()

    @classmethod
    def resolved(cls, options: Options) -> dict[str, str | int]:
        """Returns the values that this memory uses for options that are None, by option name."""
        return {}

    def entries_by_options(self) -> dict[tuple[str, ...], set[str]]:
        """Returns the entries of the state dict that lose their meaning if any of the named options changes."""
        return {("feature_map",): {name for name in self.state_dict() if name.startswith("features.")}}

    def forward(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Runs the method with this name, after the hooks of the module."""
        return getattr(self, method)(*arguments, **named)

    def start_beta(self) -> None:
        """Initialises the projection of beta as the paper's code does: beta starts near the middle of its range."""
        if self.beta_proj is not None:
            start(self.beta_proj, small)

    def parts(self, x: Tensor) -> Parts:
        """Computes gates (..., H) and additional parts (..., H, width) from the input of the keys (..., source_dim)."""
        parts = {}
        if self.beta_proj is not None:
            logits = self.beta_proj(x)
            beta, largest = torch.sigmoid(logits.to(state_type(logits.dtype))), BETA_RANGES[self.options.beta_range]
            parts["beta"] = beta if largest == 1 else largest * beta
        if self.decay is not None:
            parts["alpha"] = self.decay(x)
        return parts

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        parts: Parts,
        *,
        key_padding_mask: Tensor | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, State | None]:
        """Writes k and v to a state, and reads with q.

        Args:
            q, k: (B, T, H, d_key) and (B, S, H, d_key), projected but before the feature map.
            v: (B, S, H, d_key).
            parts: the result of :meth:`parts`, batch first.
            key_padding_mask: (B, S), True at padding, which writes nothing.
            state: the state before the first position; None for an empty one. It is not modified.
            return_state: True to return the state after the last write.

        Returns:
            ``(out, state)``: out (B, T, H, d_key), and the state after the last write, or None.
        """
        raise NotImplementedError

    def weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None = None) -> Tensor | None:
        """Computes attention weights, (B, H, T, S); None if the memory has none."""
        return None

    def state_shapes(self) -> State:
        """Returns the shape of each tensor of a state, without the batch dimension; None for an absent tensor."""
        raise NotImplementedError

    def empty_state(self, rows: int, like: Tensor) -> State:
        """Returns an empty state for inputs with the dtype and device of ``like``."""
        return zeros(self.state_shapes(), rows, like)

    def decodes_lazily(self, k: Tensor) -> bool:
        """Returns True if decoding can cache recent keys like k instead of updating a state (:mod:`..ops.decoding`)."""
        return False

    def step(
        self, held: Held | None, q: Tensor, k: Tensor, v: Tensor, parts: Parts, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, Held]:
        """Writes T positions one after another, and reads after each.

        Args:
            held: the result of the previous step; None in the first. A step modifies a cache, so each result can be
                continued only once.
            q, k, v, parts, key_padding_mask: as in :meth:`attend`, with as many queries as keys.

        Returns:
            ``(out, held)``: out (B, T, H, d_key), and the state or cache from which the next step continues.
        """
        if self._is_lazy(held, k):
            return self._step(held, q, k, v, parts, key_padding_mask)
        return self.attend(q, k, v, parts, key_padding_mask=key_padding_mask, state=held, return_state=True)

    def write(self, k: Tensor, v: Tensor, parts: Parts, *, key_padding_mask: Tensor | None, rows: Tensor) -> Held:
        """Writes complete sources, (N, S, ...), for :meth:`read`. ``rows``: (R,), int32; row r reads source rows[r]."""
        if self._is_lazy(None, k):
            return self._write(k, v, parts, key_padding_mask, rows)
        q = k[:, :0]
        return select(self.attend(q, k, v, parts, key_padding_mask=key_padding_mask, return_state=True)[1], rows)

    def read(self, held: Held, q: Tensor) -> Tensor:
        """Reads with q (R, T, H, d_key) from the result of :meth:`write` or from a state, without writing."""
        if self._is_lazy(held, q):
            return self._read(held, q)
        k = q[:, :0]
        gates = dict.fromkeys(GATES[self.options.update_rule], k[..., 0])
        return self.attend(q, k, q.new_empty(*k.shape[:3], self.sizes.d_key), gates, state=held)[0]

    def _is_lazy(self, held: Held | None, k: Tensor) -> bool:
        """Returns True if decoding from ``held`` (None at first) is lazy, which cannot be differentiated."""
        if held is None:
            return not torch.is_grad_enabled() and self.decodes_lazily(k)
        if isinstance(held, self.State):
            return False
        if torch.is_grad_enabled():
            raise RuntimeError("decoding began under torch.no_grad() and cannot be differentiated from here on")
        return True

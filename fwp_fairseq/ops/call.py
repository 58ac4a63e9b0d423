"""The checked arguments of one operator call, in the form that every backend receives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..numerics import state_type
from . import state

Rule = Literal["sum", "delta", "gated", "gated_delta"]
RULES: tuple[Rule, ...] = get_args(Rule)
# The gates of each rule, one number per head and position, in the order of the operators' arguments.
GATES: dict[Rule, tuple[str, ...]] = {
    "sum": (),
    "delta": ("beta",),
    "gated": ("beta",),
    "gated_delta": ("beta", "alpha"),
}
# The default of the constant that is added to every denominator.
EPS = 1e-6
# The rules that overwrite the value of a key.
CORRECTING: tuple[Rule, ...] = ("delta", "gated_delta")
# The rules under which all earlier content decays.
DECAYING: tuple[Rule, ...] = ("gated", "gated_delta")


@state.registered
class FastWeights(NamedTuple):
    """The state that one operator call passes to the next.

    Attributes:
        W: ``(B, H, d_dot, d_value)``; ``W[b, h, i, j]`` is W[j, i] of the paper.
        z: ``(B, H, d_dot)``, the accumulator, or None if the output is not normalised.
    """

    W: Tensor
    z: Tensor | None


@dataclass(frozen=True)
class Call:
    """The arguments of one operator call, checked by :mod:`.fast_weights`, which documents the shapes."""

    rule: Rule
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None
    alpha: Tensor | None
    feature_map: Callable[[Tensor], Tensor] | None
    causal: bool
    key_padding_mask: Tensor | None
    normalize_features: bool
    normalize_output: bool
    eps: float
    initial_state: FastWeights | None
    return_state: bool
    both_ways: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of phi, sums and state: :func:`state_type` of the dtype of v."""
        return state_type(self.v.dtype)

    def features(self, x: Tensor) -> Tensor:
        """Computes phi(x), before any normalisation, in :attr:`dtype`; x is (B, H, L, d_key), as maps expect."""
        x = x.to(self.dtype)
        return x if self.feature_map is None else self.feature_map(x).to(self.dtype)


def without_pads(k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Sets keys (B, S, H, d) to 0 at padding.

    A NaN there would otherwise reach the gradients of their features, because zero times NaN is NaN.
    """
    return k if key_padding_mask is None else k.masked_fill(key_padding_mask[:, :, None, None], 0)


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Returns numerator / denominator, and 0 (with gradient 0) where the denominator is exactly 0."""
    empty = denominator == 0
    return (numerator / denominator.masked_fill(empty, 1)).masked_fill(empty, 0)

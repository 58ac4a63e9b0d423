"""What every feature map phi: R^d_key -> R^d_dot offers, and what it may promise."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn


class KernelOptions(NamedTuple):
    """What the compiled operators are given of a map beside its name: FAVOR+'s (m, d_key), and x' = input_scale x."""

    projection: Tensor | None = None
    input_scale: float = 1.0


class FeatureMap(nn.Module):
    """Maps the last dimension of a tensor, ``(..., d_key) -> (..., d_dot)``; the same function for queries and keys.

    Half-precision inputs are computed and returned in float32, autocast or not: products of two features underflow in
    float16 otherwise. A subclass sets ``name``, defines the function in :meth:`features`, and states its widths in the
    class methods :meth:`parameters_for`, :meth:`width_for`, :meth:`natural_parameters` and :meth:`nearest_widths`.

    Attributes:
        name: of the flags and of ``FEATURE_MAPS``.
        title: as a reader knows it, for help texts.
        widths: d_dot as a formula, for help texts.
        parameters_help: names and help texts of what sets the width (nu, m), if anything does.
        per_head: holds parameters for every head, and is built with ``heads``.
        learned: holds parameters that are trained.
        homogeneity: n where phi(c x) = c^n phi(x) for every c > 0; decoding then keeps keys instead of features.
        non_negative: no feature is ever below 0, as normalisers expect.
        kernel: the map's name in the compiled operators; None where they do not have it.

    The last four are promises of the class that makes them: a subclass that repeats none makes none, because it may
    compute something else.
    """

    name: str
    title: str
    widths: str = "d_key"
    parameters_help: ClassVar[dict[str, str]] = {}
    per_head: bool = False
    learned: bool = False
    homogeneity: int | None = None
    non_negative: bool = False
    kernel: str | None = None

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for promise in ("learned", "homogeneity", "non_negative", "kernel"):
            if promise not in vars(cls):
                setattr(cls, promise, getattr(FeatureMap, promise))

    def __init__(self, d_key: int, d_dot: int):
        super().__init__()
        self.d_key = d_key
        self.d_dot = d_dot

    def features(self, x: Tensor) -> Tensor:
        """phi(x) for x of float32 or wider, of shape (..., d_key); in the operators (..., H, L, d_key), always."""
        raise NotImplementedError

    def kernel_options(self) -> KernelOptions:
        """For the compiled operators, where ``kernel`` names one."""
        return KernelOptions()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.d_key:
            raise ValueError(
                f"{self.name} feature map: last dimension of the input is {x.shape[-1]}, expected d_key = {self.d_key}"
            )
        with torch.autocast(x.device.type, enabled=False):
            return self.features(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x)

    def extra_repr(self) -> str:
        return f"d_key={self.d_key}, d_dot={self.d_dot}"

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        """The parameter (nu, m or none) used when no width is asked for."""
        return {}

    @classmethod
    def width_for(cls, d_key: int) -> int:
        """d_dot of the map with the given parameter; ValueError when there is no such map."""
        return d_key

    @classmethod
    def parameters_for(cls, d_key: int, d_dot: int) -> dict[str, int] | None:
        """The parameter that gives this width, or None when no parameter does."""
        return {} if d_dot == d_key else None

    @classmethod
    def nearest_widths(cls, d_key: int, d_dot: int) -> list[int]:
        """The possible widths next to an impossible one, below first."""
        return [d_key]

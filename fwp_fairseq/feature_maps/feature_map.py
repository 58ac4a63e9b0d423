"""What every feature map phi: R^d_key -> R^d_dot offers."""

import torch
from torch import Tensor, nn


class FeatureMap(nn.Module):
    """Maps the last dimension of a tensor, ``(..., d_key) -> (..., d_dot)``; the same function for queries and keys.

    Half-precision inputs are computed and returned in float32, autocast or not: products of two features underflow in
    float16 otherwise. A subclass sets ``name``, defines the function in :meth:`features`, and states its widths in the
    class methods :meth:`parameters_for`, :meth:`width_for`, :meth:`natural_parameters` and :meth:`nearest_widths`.
    """

    name: str

    def __init__(self, d_key: int, d_dot: int):
        super().__init__()
        self.d_key = d_key
        self.d_dot = d_dot

    def features(self, x: Tensor) -> Tensor:
        """phi(x) for x of float32 or wider."""
        raise NotImplementedError

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

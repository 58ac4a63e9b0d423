"""The base class of learned maps: a matrix for every head, then a map without parameters."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..sharding import assign
from .feature_map import FeatureMap


class LearnedMap(FeatureMap):
    """phi(x) = kernel_map(W_h x + b_h), with W_h (n, d_key) and b_h (n,) of head h; a map need not have b.

    Any n is possible. Cost: n d_key multiplications per head and position, in addition to those of ``kernel_map``.

    Parameters: ``weight`` (heads, n, d_key), initialised by :meth:`fresh_weight` for each head.
    """

    parameters_help: ClassVar = {"n": "rows of each learned matrix"}
    per_head = True

    def __init__(self, d_key: int, n: int, heads: int):
        super().__init__(d_key, self.width_for(d_key, n=n))
        self.n = n
        self._kernel_map = self.make_kernel_map()
        self.weight = nn.Parameter(self._fresh(heads))

    def _fresh(self, heads: int) -> Tensor:
        return torch.stack([self.fresh_weight(self.n, self.d_key) for _ in range(heads)])

    def reset_parameters(self) -> None:
        """Initialises the matrices again."""
        assign(self.weight, self._fresh(len(self.weight)))

    def project(self, x: Tensor) -> Tensor:
        """Computes W_h x for x (..., heads, L, d_key), in the dtype of x: (..., heads, L, n)."""
        return torch.einsum("...hld,hnd->...hln", x, self.weight.to(x.dtype))

    @staticmethod
    def fresh_weight(n: int, d_key: int) -> Tensor:
        """Returns the initial W_h, (n, d_key)."""
        raise NotImplementedError

    def make_kernel_map(self) -> FeatureMap:
        """Builds the map without parameters."""
        raise NotImplementedError

    @property
    def kernel_map(self) -> FeatureMap:
        return self._kernel_map

    def features(self, x: Tensor) -> Tensor:
        return self.kernel_map.features(self.project(x))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n={self.n}"

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        return {"n": d_key}

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 1

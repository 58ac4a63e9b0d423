"""What learned maps have in common: a matrix for every head, before a map without parameters."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from .feature_map import FeatureMap


class LearnedMap(FeatureMap):
    """phi(x) = rest(prepare(x)), where ``prepare`` starts with W_h x, W_h (n, d_key) of head h.

    Any n is possible. The product is linear in x = W_q input, so W_h could be multiplied into the projection that makes
    x once training is over. Cost: n d_key multiplications a head and position beside those of ``rest``.

    Parameters: ``weight`` (heads, n, d_key), one block of it from :meth:`fresh_weight` for each head.
    """

    parameters_help: ClassVar = {"n": "rows of each learned matrix"}
    per_head = True
    learned = True

    def __init__(self, d_key: int, n: int, heads: int):
        super().__init__(d_key, self.width_for(d_key, n=n))
        self.n = n
        self.operator_map = self.make_rest()
        self.weight = nn.Parameter(torch.stack([self.fresh_weight(n, d_key) for _ in range(heads)]))

    def project(self, x: Tensor) -> Tensor:
        """W_h x of x (..., heads, L, d_key), in the type of x; (..., heads, L, n)."""
        return torch.einsum("...hld,hnd->...hln", x, self.weight.to(x.dtype))

    @staticmethod
    def fresh_weight(n: int, d_key: int) -> Tensor:
        """W_h as a training begins with it, (n, d_key)."""
        raise NotImplementedError

    def make_rest(self) -> FeatureMap:
        """The map without parameters."""
        raise NotImplementedError

    def rest(self) -> FeatureMap:
        return self.operator_map

    def features(self, x: Tensor) -> Tensor:
        return self.rest().features(self.prepare(x))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n={self.n}"

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        return {"n": d_key}

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 1

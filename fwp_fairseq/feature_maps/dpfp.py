"""Deterministic parameter-free projection (Schlag, Irie and Schmidhuber 2021, Sec. 5.3)."""

from typing import ClassVar

import torch
from torch import Tensor

from .feature_map import FeatureMap


class Dpfp(FeatureMap):
    """DPFP-nu: products of the entries of r = relu([x, -x]) at the offsets 1..nu; d_dot = 2 nu d_key.

    Block j (j = 1..nu, concatenated) is r * roll(r, +j): feature i of block j is r_i r_{i-j}, with indices modulo
    2 d_key. This is Listing 1 of the paper and both official implementations. Eq. 37 gives the product as r_i r_{i+nu};
    if nu is read as a running index, these are the same products in another order, so inner products are the same.

    Features are never negative, about a quarter of them are non-zero, and scaling x by c scales them by c^2. Offsets of
    d_key and more add nothing new (offset d_key gives zeros), so nu up to d_key - 1 is useful; the paper's range,
    1..2 d_key - 1, is accepted. Cost: nu passes over 2 d_key numbers per row.
    """

    name = "dpfp"
    title = "DPFP-nu"
    widths = "2 nu d_key, naturally nu = 1"
    parameters_help: ClassVar = {"nu": "number of offsets"}
    homogeneity = 2
    non_negative = True
    kernel = "dpfp"

    def __init__(self, d_key: int, nu: int):
        super().__init__(d_key, self.width_for(d_key, nu=nu))
        self.nu = nu

    def features(self, x: Tensor) -> Tensor:
        r = torch.cat([x, -x], dim=-1).relu()
        return torch.cat([r * r.roll(j, dims=-1) for j in range(1, self.nu + 1)], dim=-1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, nu={self.nu}"

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 2 * d_key

    @classmethod
    def largest(cls, d_key: int) -> int:
        return 2 * d_key - 1

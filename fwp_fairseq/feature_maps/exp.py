"""Exponentials of the inputs."""

from typing import ClassVar

import torch
from torch import Tensor

from .favor import LARGEST_EXPONENT
from .feature_map import FeatureMap


class Exp(FeatureMap):
    """phi(x) = exp(x), d_dot = d_key; or [exp(x), exp(-x)], d_dot = 2 d_key. Exponents are clipped at 30.

    Made for ``--fwp-normalizer positions``, with which it is the attention of Shen et al. 2021 ("Efficient Attention:
    Attention with Linear Complexities"): softmax of the keys over positions, of the queries over features.
    """

    name = "exp"
    title = "exponentials"
    widths = "d_key or 2 d_key, naturally d_key"
    parameters_help: ClassVar = {"signs": "number of signs (1: exp(x), 2: exp(x) and exp(-x))"}
    non_negative = True
    kernel = "exp"  # with one sign

    def __init__(self, d_key: int, signs: int = 1):
        super().__init__(d_key, self.width_for(d_key, signs=signs))
        self.signs = signs
        if signs != 1:
            self.kernel = None
            self.operator_map = Exp(self.d_dot)

    def prepare(self, x: Tensor) -> Tensor:
        return x if self.signs == 1 else torch.cat([x, -x], dim=-1)

    def rest(self) -> FeatureMap:
        return self if self.signs == 1 else self.operator_map

    def features(self, x: Tensor) -> Tensor:
        return self.prepare(x).clamp(max=LARGEST_EXPONENT).exp()

    @classmethod
    def largest(cls, d_key: int) -> int:
        return 2

"""The identity map, for features that the caller has computed."""

from torch import Tensor

from .feature_map import FeatureMap


class Identity(FeatureMap):
    """phi(x) = x; d_dot = d_key. Normalisers require non-negative features, which the caller has to ensure."""

    name = "identity"
    title = "none"
    homogeneity = 1
    kernel = "identity"

    def __init__(self, d_key: int):
        super().__init__(d_key, d_key)

    def features(self, x: Tensor) -> Tensor:
        return x

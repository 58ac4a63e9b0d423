"""ELU + 1 (Katharopoulos et al. 2020)."""

from torch import Tensor

from ..numerics import state_type, without_autocast
from .feature_map import FeatureMap
from .unit_rows import elu_plus_one, elu_to_length_one


class Elu(FeatureMap):
    """phi(x) = elu(x) + 1, that is x + 1 for x > 0 and exp(x) elsewhere; d_dot = d_key, every feature positive.

    Schlag et al. 2021, Eq. 30. The map is not homogeneous, so scaling q by d_key^-1/2, as in softmax attention, would
    change the model; nothing is scaled here.
    """

    name = "elu"
    title = "ELU+1"
    non_negative = True
    kernel = "elu"

    def __init__(self, d_key: int):
        super().__init__(d_key, d_key)

    def features(self, x: Tensor) -> Tensor:
        return elu_plus_one(x)

    def of_length_one(self, x: Tensor, eps: float) -> Tensor:
        if self.kernel is None:  # a subclass, whose features may differ
            return super().of_length_one(x, eps)
        with without_autocast(x):
            return elu_to_length_one(x.to(state_type(x.dtype)), eps)

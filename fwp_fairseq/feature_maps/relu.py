"""ReLU (Kasai et al. 2021)."""

import torch.nn.functional as F
from torch import Tensor

from .feature_map import FeatureMap


class Relu(FeatureMap):
    """phi(x) = max(x, 0); d_dot = d_key.

    This is the map of Kasai et al. 2021 ("Finetuning Pretrained Transformers into RNNs") without their learned
    projection. A query that has no non-zero feature in common with any key reads 0.
    """

    name = "relu"
    title = "ReLU"
    homogeneity = 1
    non_negative = True
    kernel = "relu"

    def __init__(self, d_key: int):
        super().__init__(d_key, d_key)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(x)

"""RMSNorm of the output of each head."""

import torch
from torch import Tensor, nn

from ..feature_maps import unit_rows
from ..numerics import state_type, without_autocast
from ..ops.call import EPS


class HeadNorm(nn.Module):
    """Computes weight_h y / sqrt(mean(y^2) + eps) over the d_value numbers of each head (Zhang and Sennrich 2019).

    The size of an output depends on the number of keys written; this norm removes the dependence without a normaliser
    z. Yang et al. 2024 ("Parallelizing Linear Transformers with the Delta Rule over Sequence Length") use it with the
    delta rule in this way. The norm is computed in float32 or wider; the result has the dtype of y.
    """

    def __init__(self, heads: int, d_value: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, d_value))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, y: Tensor) -> Tensor:
        """Normalises y (..., heads, d_value)."""
        with without_autocast(y):
            wide = y.to(state_type(y.dtype))
            return (unit_rows.to_rms_one(wide, EPS) * self.weight.to(wide.dtype)).to(y.dtype)

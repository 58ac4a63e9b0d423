"""RFA, random Fourier features of the direction of x (Peng et al. 2021)."""

import math

import torch
from torch import Tensor, nn

from .random_features import RandomFeatures
from .unit_rows import lengths


class Rfa(RandomFeatures):
    """phi(x) = [sin(W_h y), cos(W_h y)] / sqrt(m), y = sigma_h * x / |x|, for head h; d_dot = 2m.

    Peng et al. 2021, "Random Feature Attention", Sec. 2.2 and 3: the m rows of W_h are drawn from N(0, I), and sigma_h
    has one learned number per dimension of x, which starts at 1, so that sigma_h times a row is drawn from
    N(0, diag(sigma_h^2)). Queries and keys share both. phi(q).phi(k) is the mean of cos(w.(y_q - y_k)) over the rows
    w, an unbiased estimate of the Gaussian kernel exp(-|y_q - y_k|^2 / 2). If all sigma are equal, this kernel is
    exp(-sigma^2) exp(sigma^2 cos(q, k)), the kernel of softmax attention over directions. The standard deviation of the
    estimate is at most 1 / sqrt(2m), for q and k of any length, and phi(x) always has length 1.

    Features can be negative, and so can their products with the accumulator z, so a denominator can come close to 0
    where the kernel is small. It makes no sense to divide such features by their sum, so normalisers that do this are
    refused. For a vector of zeros, which has no direction, y = 0.

    By default, training resamples W_h for each update; evaluation always uses the same (:class:`RandomFeatures`). The
    paper's code also resamples, from a fixed pool.

    The features are computed before the operator, in float32 or wider. They take d_dot numbers per position in memory,
    and as many again for the backward pass. Cost: m d_key multiplications, m sines and m cosines.
    """

    name = "rfa"
    title = "RFA, learned variances"
    widths = "2m, naturally 2 d_key"
    per_head = True
    homogeneity = 0

    def __init__(self, d_key: int, m: int, heads: int):
        super().__init__(d_key, m)
        self.heads = heads
        self.sigma = nn.Parameter(torch.ones(heads, d_key))
        self.register_directions()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.ones_(self.sigma)

    @property
    def directions_shape(self) -> tuple[int, ...]:
        return self.heads, self.m, self.d_key

    def draw(self, generator: torch.Generator) -> Tensor:
        return torch.randn(self.directions_shape, generator=generator, dtype=torch.float64).float()

    def features(self, x: Tensor) -> Tensor:
        largest = x.detach().abs().amax(-1, keepdim=True)
        has_squares = (largest == 0) | ((largest > 1e-15) & (largest < 1e15))  # others' squares are 0 or infinite
        x = x / largest.masked_fill(has_squares, 1)
        length = lengths(x)
        y = x / length.masked_fill(length == 0, 1) * self.sigma[:, None].to(x.dtype)
        angles = y @ self.current_projection().to(x.dtype).mT
        return torch.cat([angles.sin(), angles.cos()], dim=-1) / math.sqrt(self.m)

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        return {"m": d_key}

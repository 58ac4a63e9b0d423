"""FAVOR+, positive random features for the softmax kernel (Choromanski et al. 2021)."""

import math

import torch
from torch import Tensor

from .random_features import RandomFeatures

# Features above exp(30) are clipped, so that sums of products of two features never overflow float32.
LARGEST_EXPONENT = 30.0


def draw_projection(m: int, d_key: int, generator: torch.Generator) -> Tensor:
    """Draws an (m, d_key) float32 matrix on the CPU, each row of which is distributed as N(0, I).

    The rows within each block of d_key rows are orthogonal (Choromanski et al. 2021, Sec. 2.4), which lowers the
    variance of the estimated kernel; each row has the length of an independent Gaussian vector.
    """

    def gaussian(rows: int) -> Tensor:
        return torch.randn(rows, d_key, generator=generator, dtype=torch.float64)

    blocks = []
    for first in range(0, m, d_key):
        rows = min(d_key, m - first)
        directions, triangle = torch.linalg.qr(gaussian(d_key))
        # QR is unique only up to signs; with a positive diagonal, the directions are uniform and reproducible.
        directions = directions * triangle.diagonal().sign()
        lengths = gaussian(rows).norm(dim=1, keepdim=True)
        blocks.append(lengths * directions.T[:rows])
    return torch.cat(blocks).float()


class Favor(RandomFeatures):
    """phi(x) = exp(-|x'|^2 / 2) / sqrt(2m) [exp(R x'), exp(-R x')], x' = d_key^-1/4 x; d_dot = 2m.

    Schlag et al. 2021, Eq. 31-32, with Choromanski et al.'s temperature: d_key^-1/4 makes phi(q).phi(k) an unbiased
    estimate of exp(q.k / sqrt(d_key)), the kernel of softmax attention. The paper and its official code have no
    temperature, so features underflow for keys of ordinary size; this is the only deliberate difference. The paper
    draws the rows of R from N(0, I); here they are also orthogonal within blocks, as in Choromanski et al. and in the
    official code.

    Features are computed in log space in float32 or wider. No maximum is subtracted before exp: a maximum over the keys
    of a sequence would depend on future positions, and decoding step by step would give different results.

    By default, training resamples R for each update; evaluation always uses the same R (:class:`RandomFeatures`).
    """

    name = "favor"
    title = "FAVOR+"
    widths = "2m, naturally m = d_key ln d_key"
    non_negative = True
    kernel = "favor"
    of_whole_rows = True

    def __init__(self, d_key: int, m: int):
        super().__init__(d_key, m)
        self.register_directions()

    @property
    def directions_shape(self) -> tuple[int, ...]:
        return self.m, self.d_key

    def draw(self, generator: torch.Generator) -> Tensor:
        return draw_projection(self.m, self.d_key, generator)

    def kernel_projection(self) -> Tensor:
        return self.current_projection()

    def features(self, x: Tensor) -> Tensor:
        x = x * self.d_key**-0.25
        log_phi = x @ self.current_projection().to(x.dtype).T
        log_norm = x.square().sum(-1, keepdim=True) / 2
        log_phi = torch.cat([log_phi, -log_phi], dim=-1) - log_norm
        return log_phi.clamp(max=LARGEST_EXPONENT).exp() / math.sqrt(2 * self.m)

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        """Returns m = d_key ln(d_key), which the theory of random features requires (Schlag et al. 2021, Sec. 5.2)."""
        return {"m": max(1, int(d_key * math.log(d_key)))}

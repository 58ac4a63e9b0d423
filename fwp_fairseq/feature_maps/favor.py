"""FAVOR+, positive random features for the softmax kernel (Choromanski et al. 2021)."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from .feature_map import FeatureMap, KernelOptions

# Features above exp(30) are clipped, so that sums of products of two features stay within float32 for every input.
LARGEST_EXPONENT = 30.0


def _gaussian(m: int, d_key: int, generator: torch.Generator) -> Tensor:
    return torch.randn(m, d_key, generator=generator, dtype=torch.float64)


def draw_projection(m: int, d_key: int, generator: torch.Generator, orthogonal: bool = True) -> Tensor:
    """Draws an (m, d_key) matrix, float32, on the CPU; each row by itself is distributed as N(0, I).

    ``orthogonal`` makes the rows of each block of d_key orthogonal to each other (Choromanski et al. 2021, Sec. 2.4),
    which lowers the variance of the estimated kernel; each row keeps the length of an independent Gaussian row.
    """
    if not orthogonal:
        return _gaussian(m, d_key, generator).float()
    blocks = []
    for first in range(0, m, d_key):
        rows = min(d_key, m - first)
        directions, triangle = torch.linalg.qr(_gaussian(d_key, d_key, generator))
        # QR is unique up to signs only; with a positive diagonal the directions are uniform and reproducible.
        directions = directions * triangle.diagonal().sign()
        lengths = _gaussian(rows, d_key, generator).norm(dim=1, keepdim=True)
        blocks.append(lengths * directions.T[:rows])
    return torch.cat(blocks).float()


class Favor(FeatureMap):
    """phi(x) = exp(-|x'|^2 / 2) / sqrt(2m) [exp(R x'), exp(-R x')], x' = scale x; d_dot = 2m.

    Schlag et al. 2021, Eq. 31-32, with Choromanski's temperature: scale = d_key^-1/4 makes phi(q).phi(k) an unbiased
    estimate of exp(q.k / sqrt(d_key)), the kernel of softmax attention. The paper and its official code leave the
    temperature out (``scale=1.0``), which underflows for keys of ordinary size; this is the one deliberate difference.
    The paper draws the rows of R from N(0, I); here they are also orthogonal within blocks, as in Choromanski et al.
    and in the official code (``orthogonal=False`` for independent rows).

    Features are computed in log space in float32 or wider. No maximum is subtracted before exp: a maximum over the keys
    of a sequence would leak the future into the past, and a sentence would decode differently step by step.

    ``projection`` is drawn once, used in evaluation, and saved with the model in float32 (even after ``.half()``).
    In training, :meth:`set_num_updates` (fairseq calls it before every update) draws another matrix from the saved
    seed and the number of updates, so that all workers, a resumed run and recomputed activations use the same one.
    """

    name = "favor"
    title = "FAVOR+"
    widths = "2m, naturally m = d_key ln d_key"
    parameters_help: ClassVar = {"m": "number of random directions"}
    non_negative = True
    kernel = "favor"

    def __init__(self, d_key: int, m: int, scale: float | None = None, orthogonal: bool = True):
        super().__init__(d_key, self.width_for(d_key, m))
        self.m = m
        self.scale = d_key**-0.25 if scale is None else scale
        self.orthogonal = orthogonal
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("projection", self._draw(0))
        self.register_buffer("training_projection", self.projection.clone(), persistent=False)

    def _draw(self, num_updates: int) -> Tensor:
        if self.seed.is_meta:  # a model on the meta device has shapes only, and no seed to draw from
            return self.seed.new_empty(self.m, self.d_key, dtype=torch.float32)
        generator = torch.Generator().manual_seed((int(self.seed) * 1_000_003 + num_updates) % 2**63)
        return draw_projection(self.m, self.d_key, generator, self.orthogonal)

    def set_num_updates(self, num_updates: int) -> None:
        """Draws the matrix for the next training batch; evaluation keeps its own."""
        self.training_projection = self._draw(num_updates + 1).to(self.projection.device)

    def _apply(self, fn, *args, **kwargs):
        projections = self.projection, self.training_projection
        super()._apply(fn, *args, **kwargs)
        if self.projection.dtype in (torch.float16, torch.bfloat16):
            self.projection, self.training_projection = (p.to(self.projection.device) for p in projections)
        return self

    def current_projection(self) -> Tensor:
        return self.training_projection if self.training else self.projection

    def kernel_options(self) -> KernelOptions:
        return KernelOptions(self.current_projection(), self.scale)

    def features(self, x: Tensor) -> Tensor:
        x = x * self.scale
        log_phi = x @ self.current_projection().to(x.dtype).T
        log_norm = x.square().sum(-1, keepdim=True) / 2
        log_phi = torch.cat([log_phi, -log_phi], dim=-1) - log_norm
        return log_phi.clamp(max=LARGEST_EXPONENT).exp() / math.sqrt(2 * self.m)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, m={self.m}"

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        """m = d_key ln(d_key), the size that the theory of random features requires (Schlag et al. 2021, Sec. 5.2)."""
        return {"m": max(1, int(d_key * math.log(d_key)))}

    @classmethod
    def width_for(cls, d_key: int, m: int) -> int:
        if m < 1:
            raise ValueError(f"favor feature map: m = {m}, expected at least 1")
        return 2 * m

    @classmethod
    def parameters_for(cls, d_key: int, d_dot: int) -> dict[str, int] | None:
        return {"m": d_dot // 2} if d_dot % 2 == 0 and d_dot >= 2 else None

    @classmethod
    def nearest_widths(cls, d_key: int, d_dot: int) -> list[int]:
        return [2] if d_dot < 2 else [d_dot - 1, d_dot + 1]

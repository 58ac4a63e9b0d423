"""Rotary positions: pairs of coordinates of queries and keys are rotated by angles proportional to their positions."""

import math

import torch
from torch import Tensor, nn

from ..numerics import state_type

_SHORTEST, _LONGEST = 16, 4096  # wavelengths in cross-attention, in positions of the source
# The largest plausible ratio between the tokens of sources and targets, in either direction. With a larger one, a
# checkpoint is damaged.
_LARGEST_RATIO = 10_000


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Rotates coordinates 2 i and 2 i + 1 of x (..., d) by angle (..., P)[..., i]; those from 2 P do not change."""
    cos, sin = (f(angle).to(x.dtype) for f in (torch.cos, torch.sin))
    pairs, rest = x.split([2 * angle.shape[-1], x.shape[-1] - 2 * angle.shape[-1]], -1)
    a, b = pairs.unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([pairs, rest], -1) if rest.shape[-1] else pairs


def self_angles(first: int, length: int, like: Tensor) -> Tensor:
    """Computes the angles of self-attention for ``length`` positions starting at ``first``, (length, 1, 1, d / 2).

    The angle of pair i at position t is t 10000^(-2 i / d) (Su et al. 2021, RoFormer, Eq. 34), where d is the last
    dimension of ``like``.
    """
    pairs, dtype = like.shape[-1] // 2, state_type(like.dtype)
    position = torch.arange(first, first + length, device=like.device, dtype=dtype)
    angle = position[:, None] * 10000 ** -(torch.arange(pairs, device=like.device, dtype=dtype) / pairs)
    return angle[:, None, None]


class CrossPositions(nn.Module):
    """Rotary positions of cross-attention, measured along the source, in half of the coordinates.

    There are P = max(1, d // 4) pairs of coordinates. Pair i is rotated by 2 pi p / wavelength_i, where the wavelengths
    form a geometric sequence from 16 to 4,096 positions. Position s of the source has p = s, and position t of the
    target has p = r t; both count tokens from the first, without padding. r is the number of source tokens per target
    token in the training set, so that p moves along the source as the translation grows. It is measured once, before
    the first update, and stored in the checkpoint; until then it is 1.

    Args:
        d: width of a head, 2 or more.

    Attributes:
        lengths: (2,), int64, the tokens of the training set's sources and targets; 0 until they are measured.
    """

    def __init__(self, d: int):
        super().__init__()
        self.pairs = max(1, d // 4)
        # Integers, which half precision leaves as they are.
        self.register_buffer("lengths", torch.zeros(2, dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Resets the measured lengths to 0."""
        self.lengths.zero_()

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        """Loads the lengths; refuses them if only one is 0, or if their ratio is above 10,000."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        low, high = (0, 0) if self.lengths.is_meta else sorted(self.lengths.tolist())
        if not (low == high == 0 or 0 < high <= low * _LARGEST_RATIO):
            expected = f"expected numbers of tokens whose ratio is at most {_LARGEST_RATIO:,}"
            errors.append(f"{prefix}lengths is {self.lengths.tolist()}, {expected}")

    def source_angles(self, position: Tensor, like: Tensor) -> Tensor:
        """Computes the angles (..., 1, P) of positions (...) of the source."""
        dtype = state_type(like.dtype)
        exponent = torch.arange(self.pairs, device=like.device, dtype=dtype) / max(1, self.pairs - 1)
        wavelength = _SHORTEST * (_LONGEST / _SHORTEST) ** exponent
        return position.to(dtype)[..., None, None] * (2 * math.pi / wavelength)

    def target_angles(self, position: Tensor, like: Tensor) -> Tensor:
        """Computes the angles (..., 1, P) of positions (...) of the target."""
        source, target = self.lengths.to(state_type(like.dtype)).unbind()
        ratio = (source / target).nan_to_num(1.0)  # before the lengths are measured, this is 0 / 0
        return self.source_angles(position * ratio, like)

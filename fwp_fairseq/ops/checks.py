"""Checks of operator arguments for all backends; errors name the tensor, the actual and the expected value.

An example: ``delta_rule: v is of shape (2, 6, 3, 6), expected (B, S, H, d_value) = (2, 5, 3, 6)``.
"""

import torch
from torch import Tensor


def fail(operator: str, tensor: str, actual: object, expected: object) -> None:
    """Raises ValueError for an operator argument that is not as expected."""
    raise ValueError(f"{operator}: {tensor} is {actual}, expected {expected}")


def check_tensor(operator: str, name: str, x: Tensor, dims: int | None, device: torch.device | None = None) -> None:
    """Raises ValueError unless x is a floating-point tensor with ``dims`` dimensions on ``device``.

    If ``dims`` is None, neither dimensions nor dtype are checked; if ``device`` is None, the device is not checked.
    """
    if not isinstance(x, Tensor):
        fail(operator, name, "None" if x is None else f"of type {type(x).__name__}", "a tensor")
    if dims is not None and x.dim() != dims:
        fail(operator, name, f"of shape {tuple(x.shape)}", f"{dims} dimensions")
    if dims is not None and not x.is_floating_point():
        fail(operator, name, f"of type {x.dtype}", "a floating point type")
    if device is not None and x.device != device:
        fail(operator, name, f"on {x.device}", f"v's device, {device}")


def _check_shape(operator: str, name: str, x: Tensor, sizes: dict[str, int], dims: str) -> None:
    shape = tuple(sizes[dim] for dim in dims.split())
    if tuple(x.shape) != shape:
        fail(operator, name, f"of shape {tuple(x.shape)}", f"({dims.replace(' ', ', ')}) = {shape}")


def check_shapes(operator: str, device: torch.device, sizes: dict[str, int], **tensors: tuple[Tensor, str]) -> None:
    """Raises ValueError unless each tensor is floating-point, has its dimensions and is on ``device``.

    ``sizes`` gives the size of each dimension by name; each tensor comes with the names of its dimensions, such as
    ``"B S H"``.
    """
    for name, (x, dims) in tensors.items():
        check_tensor(operator, name, x, len(dims.split()), device)
        _check_shape(operator, name, x, sizes, dims)


def check_mask(operator: str, mask: Tensor, sizes: dict[str, int], dims: str, device: torch.device) -> None:
    """Raises ValueError unless a padding mask is bool, has these dimensions and is on ``device``."""
    check_tensor(operator, "key_padding_mask", mask, None, device)
    if mask.dtype != torch.bool:
        fail(operator, "key_padding_mask", f"of type {mask.dtype}", "torch.bool, True at padding")
    _check_shape(operator, "key_padding_mask", mask, sizes, dims)

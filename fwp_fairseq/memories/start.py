"""Initialises parameters independently of the order in which modules are reset."""

from collections.abc import Callable
from functools import partial

from torch import nn


def start(linear: nn.Linear, draw: Callable[[nn.Linear], None]) -> None:
    """Initialises a linear layer with ``draw``, now and whenever its ``reset_parameters`` is called.

    The layer stays an ``nn.Linear``, because some PyTorch tools (dynamic quantisation) look for exactly this type.
    """
    linear.reset_parameters = partial(_reset, linear, draw)
    draw(linear)


def _reset(linear: nn.Linear, draw: Callable[[nn.Linear], None]) -> None:
    type(linear).reset_parameters(linear)
    draw(linear)


def xavier(linear: nn.Linear, gain: float = 1.0) -> None:
    """Draws the weights with Xavier initialisation; leaves the bias unchanged."""
    nn.init.xavier_uniform_(linear.weight, gain=gain)


def small(linear: nn.Linear) -> None:
    """Draws weights close to 0, so that the outputs are too, and sets the bias to 0."""
    nn.init.normal_(linear.weight, std=0.02)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def reset_parts(module: nn.Module) -> None:
    """Resets every module inside ``module``, including those that were on the meta device."""
    for part in module.modules():
        if part is not module and hasattr(part, "reset_parameters"):
            part.reset_parameters()

"""The compiled operators. This version has none yet; ``csrc/`` is their place and this module the reason-giver."""

from torch import Tensor

from .. import _extension
from .problem import FastWeights, Problem


def unsupported_reasons(problem: Problem) -> list[str]:
    """Why the compiled library cannot serve this call; empty when it can."""
    return [_extension.status().reason or "the compiled library has no kernel for this operator yet"]


def run(problem: Problem) -> tuple[Tensor, FastWeights | None]:
    raise NotImplementedError("; ".join(unsupported_reasons(problem)))

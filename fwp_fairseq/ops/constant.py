"""What Python asks once and compiled code never."""

from collections.abc import Callable
from functools import cache, wraps

import torch


def constant(function: Callable) -> Callable:
    """Its result by its arguments, computed once a process; to ``torch.compile`` a constant of the graph.

    The cache stands inside: the compiler looks through ``functools.cache`` into the function.
    """
    known = cache(function)

    @torch.compiler.assume_constant_result
    @wraps(function)
    def found(*arguments):
        return known(*arguments)

    found.cache_clear = known.cache_clear
    return found

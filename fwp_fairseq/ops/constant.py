"""Memoises a function and marks its result as a constant for ``torch.compile``."""

from collections.abc import Callable
from functools import cache, wraps


def constant(function: Callable) -> Callable:
    """Its result by its arguments, computed once a process; to ``torch.compile`` a constant of the graph.

    The cache stands inside: the compiler looks through ``functools.cache`` into the function.
    """
    known = cache(function)

    @wraps(function)
    def found(*arguments):
        return known(*arguments)

    # All that torch.compiler.assume_constant_result does, without importing the compiler, half of this package's start.
    found._dynamo_marked_constant = True
    found.cache_clear = known.cache_clear
    return found

"""Memoises a function and marks its result as a constant for everything that traces graphs."""

from collections.abc import Callable
from functools import cache, wraps

from torch.utils._python_dispatch import _disable_current_modes


def constant(function: Callable) -> Callable:
    """Decorates a function whose result depends on its arguments alone.

    The result for given arguments is computed once per process. Meanwhile, modes such as that of ``torch.export`` are
    off, because they would record the operators that the function calls. ``torch.compile`` treats the result as a
    constant. ``functools.cache`` is inside the returned function, because the compiler would otherwise trace it.
    """

    @cache
    def known(*arguments):
        with _disable_current_modes():
            return function(*arguments)

    @wraps(function)
    def constant_function(*arguments):
        return known(*arguments)

    # torch.compiler.assume_constant_result does this too, but imports the compiler: half of this package's import time.
    constant_function._dynamo_marked_constant = True
    constant_function.cache_clear = known.cache_clear
    return constant_function

"""Makes small grids of tests that cover every pair (or triple) of options instead of every combination."""

import itertools
from collections.abc import Callable, Iterable


def choose(rows: Iterable, features: Callable[[object], set]) -> list:
    """Returns some of the rows, which together have all features that the rows have.

    The result is deterministic: each step takes the first row that has most of what is still missing. Cost: the number
    of rows for each row that is taken.
    """
    found = {row: features(row) for row in rows}
    missing = set().union(*found.values())
    taken = []
    while missing:
        taken.append(max(found, key=lambda row: len(found[row] & missing)))
        missing -= found[taken[-1]]
    return taken


def covering(*axes: Iterable, strength: int = 2) -> list[tuple]:
    """Returns combinations, of one value per axis, in which any ``strength`` values of different axes occur together.

    The order is that of the product; otherwise as :func:`choose`.
    """
    axes = tuple(tuple(axis) for axis in axes)
    chosen = list(itertools.combinations(range(len(axes)), strength))
    numbers = list(itertools.product(*(range(len(axis)) for axis in axes)))
    taken = choose(numbers, lambda row: {(columns, tuple(row[i] for i in columns)) for columns in chosen})
    return [tuple(axis[i] for axis, i in zip(axes, row, strict=True)) for row in taken]

"""Makes small grids of tests that cover every pair (or triple) of options instead of every combination."""

import itertools
from collections.abc import Iterable


def covering(*axes: Iterable, strength: int = 2) -> list[tuple]:
    """Returns combinations, of one value per axis, in which any ``strength`` values of different axes occur together.

    The result is deterministic: each step takes the first combination, in the order of the product, that covers most
    of what is still missing. Cost: the size of the product for each combination that is taken.
    """
    axes = tuple(tuple(axis) for axis in axes)
    chosen = list(itertools.combinations(range(len(axes)), strength))
    numbers = list(itertools.product(*(range(len(axis)) for axis in axes)))
    covered = {row: {(columns, tuple(row[i] for i in columns)) for columns in chosen} for row in numbers}
    missing = set().union(*covered.values())
    taken = []
    while missing:
        best = max(numbers, key=lambda row: len(covered[row] & missing))
        missing -= covered[best]
        taken.append(tuple(axis[i] for axis, i in zip(axes, best, strict=True)))
    return taken

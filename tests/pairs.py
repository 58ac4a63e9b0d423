"""Few of many combinations: grids of tests that cover what goes together instead of everything."""

import itertools
from collections.abc import Iterable


def covering(*axes: Iterable, strength: int = 2) -> list[tuple]:
    """Combinations of one value an axis such that any ``strength`` values of different axes occur together in one.

    Always the same ones: each step takes the first combination, in the order of the product, that has most of what is
    still missing. Cost: the size of the product for each combination that is taken.
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

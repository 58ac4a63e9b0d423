"""Makes small grids of tests that cover every pair (or triple) of options instead of every combination."""

import heapq
import itertools
from collections.abc import Callable, Iterable


def choose(rows: Iterable, features: Callable[[object], set]) -> list:
    """Returns some of the rows, which together have all features that the rows have.

    The result is deterministic: each step takes the first row that has most of what is still missing. What a row adds
    never grows, so a row is looked at again only if it was better than all others before.
    """
    found = [(row, features(row)) for row in rows]
    missing = set().union(*(own for _, own in found))
    waiting = [(-len(own), number) for number, (_, own) in enumerate(found)]  # the best first; too good rather than not
    heapq.heapify(waiting)
    taken = []
    while missing:
        before, number = heapq.heappop(waiting)
        row, own = found[number]
        adds = len(own & missing)
        if adds == -before:
            taken.append(row)
            missing -= own
        else:
            heapq.heappush(waiting, (-adds, number))
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

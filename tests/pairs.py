"""Makes small grids of tests that cover every pair (or triple) of options instead of every combination."""

import heapq
import itertools
from collections.abc import Iterable


def covering(*axes: Iterable, strength: int = 2) -> list[tuple]:
    """Returns combinations, one value per axis, in which any ``strength`` values of different axes occur together.

    Each step takes the first combination that has most of what is still missing. What one adds never grows, so it is
    looked at again only if it was better than all others before.
    """
    axes = tuple(tuple(axis) for axis in axes)
    columns = list(itertools.combinations(range(len(axes)), strength))
    rows = list(itertools.product(*(range(len(axis)) for axis in axes)))
    has = [{(chosen, tuple(row[i] for i in chosen)) for chosen in columns} for row in rows]
    missing, taken = set().union(*has), []
    waiting = [(-len(columns), number) for number in range(len(rows))]  # the best first; too good rather than not
    while missing:
        before, number = heapq.heappop(waiting)
        adds = len(has[number] & missing)
        if adds == -before:
            taken.append(rows[number])
            missing -= has[number]
        else:
            heapq.heappush(waiting, (-adds, number))
    return [tuple(axis[i] for axis, i in zip(axes, row, strict=True)) for row in taken]

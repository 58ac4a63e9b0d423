"""No kernel has a race, and the table of barriers in csrc/cuda/README.md names those of the sources."""

import pytest
import torch

from tests.cuda import barriers, races, shim


@pytest.mark.slow
@pytest.mark.parametrize("kernel", dict.fromkeys(case.kernel for case in races.fewer_cases()))
def test_no_race(kernel):
    """In some calls for every kind of kernel; `python -m tests.cuda.barriers` begins with all of them."""
    for case in races.fewer_cases():
        if case.kernel == kernel:
            assert not (error := barriers.failure(case)), f"{case}: {error}"
            # CUDA wants all threads of a block to come to sync_block at the same place.
            met = shim.barriers(*races.libraries())
            assert not [places for kind, places in met if kind == "block" and " " in places], case


def test_the_table_names_the_barriers_of_the_sources():
    assert set(barriers.tabled()) == set(map(str, barriers.in_sources().values()))
    assert "unknown" not in barriers.PAGE.read_text(encoding="utf-8").partition(barriers.BEGIN)[2]


@pytest.mark.slow
@pytest.mark.parametrize("direction", races.DIRECTIONS)
def test_a_barrier_that_is_left_out_is_noticed(direction):
    """Barriers of blocks, teams and warps: all but those that the table explains or that count for other calls only."""
    case = races.Case(direction, "state, segments", "delta", torch.float16)
    assert not barriers.failure(case)
    met = shim.barriers(*races.libraries())
    noticed = {barrier for barrier in met if "race: thread" in barriers.failure(case, without=barrier[1])}
    assert {kind for kind, _ in noticed} == {"block", "named", "warp"}
    missed = {barriers.in_sources()[place] for _, places in met - noticed for place in places.split()}
    others = {"read_inputs", "solve_for_E"}  # for wider heads
    assert {barrier.function for barrier in missed - barriers.WHY.keys()} <= others

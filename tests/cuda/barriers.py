"""Leaves out each barrier of the CUDA kernels in turn, and writes into csrc/cuda/README.md where that is noticed.

First every case of tests/cuda/races.py runs as it is, and no race may be found. Then, for each barrier and each kind of
kernel that comes to it, cases run without the barrier until one of them is a race. Takes minutes of processor time.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import NamedTuple

from tests.cuda import races, shim

PAGE = shim.CUDA / "README.md"
BEGIN, END = "<!-- barriers: python -m tests.cuda.barriers -->\n", "<!-- /barriers -->"
NOTICED, NOT_NOTICED, NOT_THERE = "yes", "no", ""
# Why a barrier has no effect where leaving it out is not noticed.
WHY = {
    ("backward_kernel.cuh", "backward_kernel", 1): "`Head` has barriers of the block before a gradient of z is read",
    ("favor_staging.cuh", "stage_favor", 1): "a barrier of the block follows (`Head`, `restage`)",
    ("forward.cuh", "run", 2): "the backward's forward serves one block of columns, so no E was there before",
    ("gradient_walk.cuh", "run", 1): "features in slabs: `restage` has barriers of the block before (`products`)",
    ("head.cuh", "Head", 1): "features in slabs: `restage` begins with a barrier of the block",
    ("products.cuh", "invert", 5): "another barrier of the warp stands before each use (`substitute`, `solve_block`)",
}


class Barrier(NamedTuple):
    """A barrier of the sources, named so that other lines do not change the name: the ``number``-th of a function."""

    file: str
    function: str
    number: int

    def __str__(self) -> str:
        return f"`{self.file}`: `{self.function}` {self.number}"


@cache
def in_sources() -> dict[str, Barrier]:
    """Every barrier of the kernels, by its place, file:line."""
    found = {}
    for file in sorted((shim.CUDA / "kernels").rglob("*.cuh")):
        if file.name == "device.cuh":
            continue
        function, number = "", 0
        for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            text = text.partition("//")[0]
            defined = re.search(r"FWP_(?:DEVICE|CALLED|KERNEL)\b.*?(\w+)\((?:[^()]|\([^()]*\))*\)?[^;]*$", text)
            if defined and "operator" not in text:
                function, number = defined[1], 0
            barrier = re.search(r"\b(sync_block|sync_warp|meet|meet_keys|meet_other)\(\)", text)
            if barrier and not (defined and ";" not in text):
                number += 1
                found[f"{file.name}:{line}"] = Barrier(file.name, function, number)
    return found


def failure(case: races.Case, without: str = "") -> str:
    """What the watched case fails with, or nothing."""
    try:
        with shim.watched(*races.libraries(), without=without):
            case.run()
    except RuntimeError as error:
        return str(error)
    return ""


def _as_it_is(case: races.Case) -> tuple[str, set[tuple[str, str]]]:
    return failure(case), shim.barriers(*races.libraries())


def _is_noticed(places: str, cases: list[races.Case]) -> bool:
    return any(failure(case, without=places) for case in cases)


def table(found: dict[tuple[str, str], dict[str, bool]], kernels: list[str]) -> str:
    """In Markdown, one line a barrier: in which kinds of kernels the detector notices that it is missing."""
    head = ["barrier", "of", *kernels, "why no effect"]
    lines = [head, ["---"] * len(head)]
    named = {barrier: ", ".join(str(in_sources()[place]) for place in barrier[1].split()) for barrier in found}
    for (kind, places), noticed in sorted(found.items(), key=lambda item: (named[item[0]], item[0])):
        cells = [{True: NOTICED, False: NOT_NOTICED, None: NOT_THERE}[noticed.get(kernel)] for kernel in kernels]
        why = {WHY.get(in_sources()[place], "unknown") for place in places.split()} if NOT_NOTICED in cells else ()
        lines.append([named[kind, places], "teams" if kind == "named" else kind, *cells, "; ".join(why)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def tabled() -> Iterator[str]:
    """The names of the barriers in the page's table."""
    text = PAGE.read_text(encoding="utf-8")
    for line in text[text.index(BEGIN) : text.index(END)].splitlines()[3:]:
        yield from line.split("|")[1].strip().split(", ")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cuda.barriers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default: 1)")
    parser.add_argument("--print", action="store_true", help="print the table instead of writing it")
    arguments = parser.parse_args()

    races.libraries()  # compiled once, before there are processes
    cases = races.cases()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        first = dict(zip(cases, pool.map(_as_it_is, cases), strict=True))
        for case, (error, _) in first.items():
            if error:
                print(f"{case}: {error}", file=sys.stderr)
        if any(error for error, _ in first.values()):
            return 1
        reached: dict[tuple[str, str], dict[str, list[races.Case]]] = {}
        for case, (_, met) in first.items():
            for barrier in met:
                reached.setdefault(barrier, {}).setdefault(case.kernel, []).append(case)
        noticed = {
            (barrier, kernel): pool.submit(_is_noticed, barrier[1], there)
            for barrier, kernels in reached.items()
            for kernel, there in kernels.items()
        }
        found = {}
        for number, (barrier, kernels) in enumerate(reached.items(), 1):
            found[barrier] = {kernel: noticed[barrier, kernel].result() for kernel in kernels}
            print(f"{number} of {len(reached)}: {' '.join(barrier)}", file=sys.stderr, flush=True)
    after = table(found, list(races.KERNELS))
    if arguments.print:
        print(after, end="")
        return 0
    before = PAGE.read_text(encoding="utf-8")
    start, end = before.index(BEGIN) + len(BEGIN), before.index(END)
    PAGE.write_text(before[:start] + after + before[end:], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

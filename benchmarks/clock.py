"""Measures several calls in turn, and keeps the smallest time of each."""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import torch

_MOST_REPEATS = 300


class Call:
    """A call to time. ``before()`` runs before each repeat and is not timed; one call does ``count`` units.

    On a GPU the call may run only once, to be captured, after one ``before()``; replays go on reading the tensors that
    it found. So the Call must hold all of them, also those that the call replaces.
    """

    count = 1

    def __init__(self, run: Callable[[], object]):
        self.run = run

    def before(self) -> None:
        pass

    def __call__(self) -> None:
        self.run()


Calls = dict[str, list[Call]]


def _cpu(call: Call) -> Callable[[], float]:
    def once() -> float:
        call.before()
        start = time.thread_time()
        call()
        return (time.thread_time() - start) / call.count

    return once


def _graph(calls: list[Call]) -> Callable[[], float]:
    """Times all calls in one CUDA graph, which makes launches free; gives the seconds per call."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            for call in calls:
                call.before()
                call()
    for call in calls:
        call.before()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / sum(call.count for call in calls)

    return once


def _events(calls: list[Call]) -> Callable[[], float]:
    """Times calls that cannot be captured; launches count where they take longer than the work."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once() -> float:
        for call in calls:
            call.before()
        begin.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / sum(call.count for call in calls)

    return once


class Times(NamedTuple):
    """Times by name; ``clocks`` tells how each was measured: cpu, graph or events."""

    seconds: dict[str, float]
    clocks: dict[str, str]


def _timer(calls: list[Call], device: str, eager: bool) -> tuple[Callable[[], float], str]:
    if device == "cpu":
        return _cpu(calls[0]), "cpu"
    if not eager:
        try:
            return _graph(calls), "graph"
        except RuntimeError:  # something in it synchronises
            torch.cuda.synchronize()
    return _events(calls), "events"


def fastest(calls: Calls, device: str, seconds: float, eager: Collection[str] = ()) -> Times:
    """Measures the calls of each name in turn for about ``seconds`` each; returns the smallest seconds per unit.

    On the CPU this is the time of this thread for the first call of each list. On a GPU it is the time of a CUDA graph
    of the whole list, whose calls should have different inputs that together exceed the cache; those of ``eager`` names
    are launched one by one instead.
    """
    made = {name: _timer(several, device, name in eager) for name, several in calls.items()}
    timers = {name: timer for name, (timer, _) in made.items()}
    best, spent, repeats = ({name: start for name in timers} for start in (float("inf"), 0.0, 0))
    while waiting := [name for name in timers if spent[name] < seconds and repeats[name] < _MOST_REPEATS]:
        for name in waiting:
            start = time.perf_counter()
            best[name] = min(best[name], timers[name]())
            spent[name] += time.perf_counter() - start
            repeats[name] += 1
    return Times(best, {name: clock for name, (_, clock) in made.items()})

"""Trains points in processes of one thread each, which report their progress as events."""

import multiprocessing
import os
import queue
import signal
from collections.abc import Iterator
from typing import NamedTuple

from scripts.common.folder import RecipeError

from .training import Point, train

_CHECK_SECONDS = 1.0


class Event(NamedTuple):
    """An evaluation of a point after ``steps`` steps, or its end, in which case ``record`` is set."""

    point: Point
    steps: int
    loss: float | None
    record: dict | None = None


class WorkerError(RecipeError):
    """A process ended before its points were done."""


def _work(points, events, parent: int, device: str, backend: str) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    # FAVOR+ without temperature underflows to denormal numbers, with which it is 10 times slower. The product of any
    # two of them is zero, so they are flushed to zero.
    torch.set_flush_denormal(True)
    for point in iter(points.get, None):

        def report(steps: int, loss: float, point: Point = point) -> None:
            if os.getppid() != parent:
                os._exit(1)
            events.put(Event(point, steps, loss))

        record = train(point, device, backend, report=report)
        events.put(Event(point, record["steps"], record["losses"][-1], record))


def train_all(points: list[Point], jobs: int, device: str, backend: str) -> Iterator[Event | None]:
    """Trains all points; yields their events in the order in which they happen, and None after a second without any.

    Raises WorkerError if a process dies. Leaving the iteration stops the processes.
    """
    context = multiprocessing.get_context("spawn")
    todo, events = context.Queue(), context.Queue()
    jobs = min(jobs, len(points))
    for point in [*points, *[None] * jobs]:
        todo.put(point)
    arguments = (todo, events, os.getpid(), device, backend)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.start()
        missing = len(points)
        while missing:
            # Checked before the queue is read, so that events that a worker sent before it died are not lost.
            dead = [worker.exitcode for worker in workers if worker.exitcode]
            try:
                event = events.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                if dead:
                    raise WorkerError(f"a training process ended with exit status {dead[0]}; see above") from None
                yield None
                continue
            missing -= event.record is not None
            yield event
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
                worker.join()

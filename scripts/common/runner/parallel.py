"""Carries out several runs, some of them at a time. If one fails, the others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ..interruption import Stopped
from ..progress import TrainingDisplay, duration


class Costly(Protocol):
    name: str
    cost: float


Run = TypeVar("Run", bound=Costly)
Devices = TypeVar("Devices")


@dataclass(frozen=True)
class Shared:
    """What the runs of one command share.

    - `jobs`: how many runs go on at a time on this machine.
    - `check`: raises Stopped if all runs are to stop.
    - `records`: the files to which each run appends its records.
    - `command`: the command that the user called.
    """

    jobs: int
    say: Callable[[str], object]
    check: Callable[[], object]
    records: tuple[Path, ...]
    command: tuple[str, ...]


class RunDisplay(TrainingDisplay):
    """The display of a training that ends when all runs are to stop."""

    def __init__(self, progress, shared: Shared, name: str):
        super().__init__(progress, lambda text: shared.say(f"{name}: {text}"))
        self.check = shared.check

    def line(self, text: str) -> None:
        self.check()
        super().line(text)


class _Pending:
    """The runs that wait, and what became of the others."""

    def __init__(self, runs: list[Run], say: Callable[[str], object], stop: threading.Event):
        self.waiting, self.say, self.stop = iter(runs), say, stop
        self.lock = threading.Lock()  # of `waiting`
        self.failures: dict[str, Exception] = {}
        self.interrupts: list[KeyboardInterrupt] = []
        self.done: list[float] = []  # the costs of the runs that have ended
        self.begin, self.number, self.whole = time.monotonic(), len(runs), sum(run.cost for run in runs)

    def work(self, run_one: Callable[[Run], object]) -> None:
        """Carries out one run after another."""
        while not self.stop.is_set():
            with self.lock:
                run = next(self.waiting, None)
            if run is None:
                return
            try:
                run_one(run)
            except Stopped:
                return
            except KeyboardInterrupt as interrupt:
                self.interrupts.append(interrupt)
                self.stop.set()
                return
            except Exception as error:
                self.failures[run.name] = error
                self.say(f"{run.name}: FAILED, the other runs go on: {str(error).partition(chr(10))[0]}")
            self.done.append(run.cost)
            left = (time.monotonic() - self.begin) * (self.whole / sum(self.done) - 1)
            text = f", about {duration(left)} left" if len(self.done) < self.number else ""
            self.say(f"{len(self.done)} of {self.number} runs ended{text}")


def carry_out(
    runs: list[Run],
    devices: list[Devices],
    run_one: Callable[[Run, Devices], object],
    say: Callable[[str], object],
    stop: threading.Event,
) -> dict[str, Exception]:
    """Calls run_one(run, devices[slot]) for every run, len(devices) at a time; returns the errors by run's name.

    A signal, or a KeyboardInterrupt of a run whose tool was ended by Ctrl-C first, sets `stop`; `run_one` must then
    raise Stopped. Once all runs have ended, the exception is raised again.
    """
    pending = _Pending(runs, say, stop)
    works = [lambda run, where=where: run_one(run, where) for where in devices[: len(runs)]]
    threads = [threading.Thread(target=pending.work, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
    except BaseException:
        stop.set()
        raise
    finally:
        for thread in threads:
            thread.join()
    if pending.interrupts:
        raise pending.interrupts[0]
    return pending.failures

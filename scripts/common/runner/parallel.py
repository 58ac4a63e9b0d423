"""Carries out several runs, some of them at a time. If one fails, the others go on."""

from __future__ import annotations

import queue
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
    waiting: queue.SimpleQueue[Run] = queue.SimpleQueue()
    for run in runs:
        waiting.put(run)
    failures: dict[str, Exception] = {}
    interrupts: list[KeyboardInterrupt] = []
    done: list[float] = []  # the costs of the runs that have ended
    begin, whole = time.monotonic(), sum(run.cost for run in runs)

    def work(slot: int) -> None:
        while not stop.is_set():
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                run_one(run, devices[slot])
            except Stopped:
                return
            except KeyboardInterrupt as interrupt:
                interrupts.append(interrupt)
                stop.set()
                return
            except Exception as error:
                failures[run.name] = error
                say(f"{run.name}: FAILED, the other runs go on: {str(error).partition(chr(10))[0]}")
            done.append(run.cost)
            left = (time.monotonic() - begin) * (whole / sum(done) - 1)
            text = f", about {duration(left)} left" if len(done) < len(runs) else ""
            say(f"{len(done)} of {len(runs)} runs ended{text}")

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(min(len(devices), len(runs)))]
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
    if interrupts:
        raise interrupts[0]
    return failures

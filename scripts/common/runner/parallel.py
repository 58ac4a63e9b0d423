"""Carries out several runs, some of them at a time. If one fails, the others go on."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed


def carry_out(
    runs: list,
    devices: list,
    run_one: Callable[[object, object], object],
    say: Callable[[str], object],
    stop: threading.Event,
) -> dict[str, Exception]:
    """Calls run_one(run, devices[slot]) for every run, len(devices) at a time; returns the errors by run's name.

    A signal, or a KeyboardInterrupt of a run whose tool was ended by Ctrl-C first, sets `stop`; `run_one` must then
    raise. Once all runs have ended, the exception is raised again.
    """
    free: queue.SimpleQueue = queue.SimpleQueue()
    for where in devices:
        free.put(where)

    def work(run) -> None:
        where = free.get()
        try:
            run_one(run, where)
        except KeyboardInterrupt:
            stop.set()  # before this thread begins the next run
            raise
        finally:
            free.put(where)

    failures = {}
    with ThreadPoolExecutor(len(devices)) as pool:
        names = {pool.submit(work, run): run.name for run in runs}
        try:
            for done, future in enumerate(as_completed(names), 1):
                try:
                    future.result()
                except Exception as error:
                    failures[names[future]] = error
                    say(f"{names[future]}: FAILED, the other runs go on: {str(error).partition(chr(10))[0]}")
                say(f"{done} of {len(runs)} runs ended")
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures

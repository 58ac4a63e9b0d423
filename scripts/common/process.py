"""Runs the tools as processes: logs their output, shows its end on failure, and stops them cleanly on Ctrl-C."""

import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fwp_fairseq.cli.processes import die_with_parent, environment

from .commands import ROOT, as_run, printed
from .errors import RecipeError

TAIL, WIDTH = 30, 300  # lines and columns shown on failure; fairseq prints its whole configuration as one line


class Usage(NamedTuple):
    seconds: float
    peak_mib: float  # peak of resident memory, of the largest of the command's processes


def run(
    command: list[str],
    log: Path,
    on_line: Callable[[str], object] | None = None,
    on_tick: Callable[[], object] | None = None,
    variables: dict[str, str] | None = None,
    on_start: Callable[[int], object] | None = None,
) -> Usage:
    """Runs `command` in the repository root and appends its output to `log`.

    `on_start` is called with the id of the process, `on_line` with every line, `on_tick` as often and at least
    twice a second; an exception in them ends the command. `variables` replaces `environment()`. Raises RecipeError
    if the command fails, and KeyboardInterrupt if SIGINT ended it, because Ctrl-C reaches both processes and the
    command may end first. On Linux, call this function from a thread that outlives the command.
    """
    begin = time.monotonic()
    tail: deque[str] = deque(maxlen=TAIL)
    with open(log, "ab", buffering=0) as out:
        out.write(f"\n+ {printed(command)}\n".encode())
        process = subprocess.Popen(
            as_run(command),
            cwd=ROOT,
            env=environment() if variables is None else variables,
            preexec_fn=die_with_parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

        try:
            if on_start:
                on_start(process.pid)
            _follow(process, out, tail, on_line, on_tick)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = status = os.waitstatus_to_exitcode(status)
        except BaseException as error:
            _end(process, was_interrupted=isinstance(error, KeyboardInterrupt))
            raise
    if status in (-signal.SIGINT, 128 + signal.SIGINT):
        raise KeyboardInterrupt
    if status:
        reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        if status == -signal.SIGKILL:
            reason += ": killed from outside, often because memory ran out"
        end = "\n".join(f"  | {line}" for line in tail)
        raise RecipeError(
            f"{Path(command[0]).name} failed ({reason}). Its last lines:\n{end}\nThe whole output is in {log}."
        )
    return Usage(time.monotonic() - begin, usage.ru_maxrss / 2**10)


def _follow(process: subprocess.Popen, out, tail: deque[str], on_line, on_tick) -> None:
    """Follows a process until it closes its output."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        if on_tick:
            on_tick()
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            continue
        if line is None:
            return
        out.write(line)
        text = line.decode(errors="replace").rstrip("\n")
        tail.append(text[:WIDTH])
        if on_line:
            on_line(text)


def _end(process: subprocess.Popen, was_interrupted: bool) -> None:
    """Ends the process by SIGTERM, unless Ctrl-C has reached it already.

    If it still runs 20 seconds later it gets SIGTERM again, and 20 seconds after that SIGKILL.
    """
    if not was_interrupted:
        process.terminate()
    for end in (process.terminate, process.kill):
        try:
            # After Ctrl-C the process is ending already, and may be saving a checkpoint.
            process.wait(timeout=20)
            return
        except subprocess.TimeoutExpired:
            end()
    process.wait()

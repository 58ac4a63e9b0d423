"""Runs Python in processes forked from one that has torch and fairseq already (tests/fork_server.py).

A fresh process needs seconds to import them. A forked one is like it in all else: it runs a module, a script or code
with its own arguments, folder, environment and files, as ``python`` would, and ends with its own status. The variables
that Python or torch reads only while it starts have no effect. All processes of a test run share the server, which
ends with the last of them.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import fork_client
from tests.shared import locked

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
# The commands that tests call by their names.
COMMANDS = ("fairseq-train", "fairseq-generate", "fairseq-hydra-train", "fwp", "torchrun")


class Python:
    """The server of a folder; ``program`` stands in for the interpreter, ``bin`` has it and commands that it runs."""

    def __init__(self, folder: Path):
        self.address, self.bin = folder / "server", folder / "bin"
        self.program = self.bin / "python"

    def write_programs(self) -> None:
        self.bin.mkdir(exist_ok=True)
        client = (sys.executable, "-IS", fork_client.__file__, self.address)
        programs = {"python": client} | {name: (*client, BIN / name) for name in COMMANDS}
        for name, words in programs.items():
            path = self.bin / name
            path.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n', encoding="utf-8")
            path.chmod(0o755)

    def start(self, arguments: list[str], folder: Path, environment: dict[str, str], files: list):
        """Starts a process with these files as its standard input, output and error; its status is what waits."""
        numbers = {number: file.fileno() for number, file in enumerate(files)}
        return fork_client.start(self.address, arguments, str(folder), environment, numbers)


@contextmanager
def server(folder: Path) -> Iterator[Python]:
    """Starts the server of this folder unless it runs, and keeps it."""
    found = Python(folder)
    with ExitStack() as stack:
        with locked(folder / "lock"):
            try:
                kept = fork_client.connected(found.address)
            except OSError:
                stack.enter_context(_started(found))
                kept = fork_client.connected(found.address)
            stack.enter_context(kept)
        yield found


@contextmanager
def _started(python: Python) -> Iterator[None]:
    python.address.unlink(missing_ok=True)
    python.write_programs()
    command = [sys.executable, HERE / "fork_server.py", python.address]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n", "the server of forked processes has not started"
        yield

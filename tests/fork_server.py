"""Imports torch and fairseq once, and forks for each process that a test asks for: see tests/forked.py.

A child is like a fresh process with only these imports, which are neither fairseq's tools nor the plugin
(torch._dynamo is one, because every optimizer imports it). The server listens at the address in its argument, and ends
when the last of those that keep it is gone. A connection asks for one process, or for nothing and keeps the server.
"""

import atexit
import gc
import importlib
import inspect
import json
import logging
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import types

ADDRESS = sys.argv[1]
PYTHON = os.path.join(os.path.dirname(ADDRESS), "bin", "python")
IMPORTED = (
    *("torch", "torch._dynamo", "setuptools", "hydra", "sacrebleu", "sentencepiece"),
    *("fairseq.options", "fairseq.trainer", "fairseq.quantization_utils", "fairseq.model_parallel.megatron_trainer"),
    "fairseq.data.data_utils_fast",
)


def _run(request: dict, files: list[int]) -> None:
    """In the child: what ``python`` does with these arguments."""
    # First above all numbers, so that none is overwritten before it is moved.
    moved = [os.dup2(file, 512 + i) for i, file in enumerate(files)]
    os.closerange(3, 512)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.executable = PYTHON  # for processes of its own
    multiprocessing.set_executable(PYTHON)
    sys.stdout.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    arguments = request["arguments"]
    while arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):  # an option of Python's own
        del arguments[: 2 if arguments[0] in ("-W", "-X") else 1]
    kind, folder = arguments[0], {"-c": "", "-m": os.getcwd()}.get(arguments[0], os.path.dirname(arguments[0]))
    sys.path[:0] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif kind == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _status(request: dict, files: list[int]) -> int:
    try:
        _run(request, files)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _child(request: dict, files: list[int]) -> None:
    """Ends as the interpreter does, but leaves it to the kernel to free what the server has imported."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = _status(request, files)
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it
        status = status or 120
    os._exit(status & 0xFF)


def _request(connection: socket.socket) -> tuple[dict, list[int]] | None:
    """What the connection asks for; None if it is closed."""
    try:
        head, files, *_ = socket.recv_fds(connection, 8, 250)
        content = b""
        while len(content) < int.from_bytes(head, "big"):
            if not (part := connection.recv(2**20)):
                return None
            content += part
    except OSError:
        return None
    return (json.loads(content), files) if head else None


class Server:
    """Waits for requests and for the ends of the children."""

    def __init__(self, listening: socket.socket):
        self.listening = listening
        self.waiting: dict[int, socket.socket] = {}  # the connections of children
        self.keeping: set[socket.socket] = set()  # those that have asked for nothing
        self.selector = selectors.DefaultSelector()
        self.ended, self.wakeup = socket.socketpair()  # a byte for each signal
        for end in (self.ended, self.wakeup):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakeup.fileno())
        self.selector.register(listening, selectors.EVENT_READ, self._accept)
        self.selector.register(self.ended, selectors.EVENT_READ, self._answer)

    def serve(self) -> None:
        """Until nobody keeps the server any more, which ends the children that are left."""
        begun = False
        while self.keeping or not begun:
            for key, _ in self.selector.select():
                key.data(key.fileobj)
            begun = begun or bool(self.keeping)
        for child in self.waiting:
            os.kill(child, signal.SIGKILL)

    def _accept(self, listening: socket.socket) -> None:
        connection, _ = listening.accept()
        self.keeping.add(connection)
        self.selector.register(connection, selectors.EVENT_READ, self._asked)

    def _answer(self, ended: socket.socket) -> None:
        ended.recv(4096)
        while self.waiting and (found := os.waitpid(-1, os.WNOHANG))[0]:
            child, status = found
            answer = os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True)
            try:
                self.waiting.pop(child).send(answer)
            except OSError:
                continue  # nobody waits for it any more

    def _asked(self, connection: socket.socket) -> None:
        request = _request(connection)
        self.keeping.discard(connection)
        if request is None:
            self.selector.unregister(connection)
            connection.close()
            for child, other in self.waiting.items():
                if other is connection:
                    os.kill(child, signal.SIGKILL)
            return
        child = os.fork()
        if child == 0:
            _child(*request)
        self.waiting[child] = connection
        for file in request[1]:
            os.close(file)


def _fill_caches() -> None:
    """What takes a tool as long as all of its imports, and is the same for every tool.

    fairseq's tools read their flags with Hydra, which looks for its plugins and has a parser that learns its grammar
    while it reads. Operators are registered with the place of their source, for which Python looks at every module.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.plugins import Plugins

    Plugins.instance()
    OverridesParser.create().parse_overrides(["a.b='c d'", "++e=-1.5e-3", "f=[1,true,null,'(0.9, 0.98)']", "g={h: i}"])
    inspect.getmodule(compile("", "in no module", "exec"))


def main() -> None:
    sys.path.pop(0)  # removes this folder, which no other program sees
    for library in IMPORTED:
        importlib.import_module(library)
    _fill_caches()
    gc.collect()
    # Otherwise the garbage collector of every child would visit, and so copy, all objects here, which takes two thirds
    # of the time of a short tool.
    gc.freeze()
    logging.root.handlers.clear()  # fairseq logs while it is imported; each tool sets up its own logging before that
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(ADDRESS)
        listening.listen()
        print("ready", flush=True)
        Server(listening).serve()


main()

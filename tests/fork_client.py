"""Stands in for ``python``: asks tests/fork_server.py to run its arguments in a process with its folder, environment
and open files, and ends as that process does.

It imports as little as possible, because it starts hundreds of times.
"""

import json
import os
import signal
import socket
import sys

STATUS = 4  # bytes of the answer


def connected(address) -> socket.socket:
    """Connects to the server; OSError if there is none."""
    found = socket.socket(socket.AF_UNIX)
    try:
        found.connect(os.fspath(address))
    except OSError:
        found.close()
        raise
    return found


def start(address, arguments: list[str], folder: str, environment: dict[str, str], files: dict[int, int]):
    """Starts the process; ``files`` maps its numbers of files to those of this process. Returns what waits for it.

    The process is killed when the connection is closed before it has ended.
    """
    request = {"arguments": arguments, "folder": folder, "environment": environment, "files": list(files)}
    content = json.dumps(request).encode()
    connection = connected(address)
    socket.send_fds(connection, [len(content).to_bytes(8, "big")], list(files.values()))
    connection.sendall(content)
    return connection


def wait(connection) -> int:
    """The status of the process, negative if a signal ended it."""
    with connection:
        answer = b""
        while len(answer) < STATUS:
            part = connection.recv(STATUS - len(answer))
            if not part:
                raise RuntimeError("the server of forked processes is gone")
            answer += part
    return int.from_bytes(answer, "big", signed=True)


def _open_files() -> dict[int, int]:
    """Those that a program started here would inherit."""
    found = {}
    for number in map(int, os.listdir("/dev/fd")):
        try:
            if os.get_inheritable(number):
                found[number] = number
        except OSError:  # the one that listed the folder
            continue
    return found


def main() -> None:
    address, *arguments = sys.argv[1:]
    connection = start(address, arguments, os.getcwd(), dict(os.environ), _open_files())
    status = wait(connection)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()

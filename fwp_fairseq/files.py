"""Writes files atomically: into a temporary file in the same folder, then renamed. Standard library only."""

import contextlib
import fcntl
import glob
import io
import os
import secrets
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# A process cannot be interrupted while it waits for the disk, so it writes this many bytes at a time.
SYNC_EVERY = 32 * 2**20

_unfinished: set[Path] = set()


class _Synced(io.FileIO):
    """A file that is flushed to the disk after every SYNC_EVERY bytes."""

    waiting = 0

    def write(self, content) -> int:
        written = super().write(content)
        self.waiting += written
        if self.waiting >= SYNC_EVERY:
            os.fsync(self.fileno())
            self.waiting = 0
        return written


def _lock(file: io.FileIO, wait: bool) -> bool:
    """Locks the file until it is closed or the process ends; returns whether it succeeded."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # it is locked, or this file system has no locks
        return False
    return True


def _remove_leftovers(target: Path) -> None:
    """Removes the temporary files that killed writers of ``target`` left behind."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with contextlib.suppress(OSError), io.FileIO(path, "r+") as file:
            if _lock(file, wait=False):
                path.unlink()


def _locked_temporary(target: Path) -> tuple[Path, _Synced]:
    """Creates and locks a temporary file in the folder of ``target``."""
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        file = _Synced(path, "x")
        # Another writer may have removed it as a leftover before it was locked.
        if not _lock(file, wait=True) or os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()


@contextlib.contextmanager
def replaced(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a binary file that replaces ``path`` when the block ends, and is removed when the block raises.

    It keeps the mode of the file that it replaces. Temporary files that killed writers of the same path left behind are
    removed. Raises OSError if writing fails or ``path`` exists and is not a regular file.
    """
    target = Path(path).resolve()
    mode = None
    if target.exists():
        if not target.is_file():
            raise OSError(f"{path}: expected a regular file")
        mode = stat.S_IMODE(target.stat().st_mode)
    _remove_leftovers(target)
    unfinished, raw = _locked_temporary(target)
    _unfinished.add(unfinished)
    try:
        with io.BufferedWriter(raw, 2**20) as file:
            if mode is not None:
                os.fchmod(raw.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, target)  # still locked here
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        _unfinished.discard(unfinished)


def write_atomically(path: str | os.PathLike, content: bytes | str) -> None:
    """Replaces the content of ``path``. Raises OSError when that fails; ``path`` then keeps its old content."""
    with replaced(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def end_on_signals(program: str) -> None:
    """Makes SIGINT, SIGTERM and SIGHUP remove unfinished files and end the process at once.

    Raising exceptions instead is not reliable: torch.save replaces them by errors of its own. Signals that the process
    ignores stay ignored.
    """

    def end(number, frame):
        for path in tuple(_unfinished):
            path.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        os.write(sys.stderr.fileno(), f"\n{program}: stopped by {signal.Signals(number).name}\n".encode())
        os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)

"""Files that are either complete or not there: written beside, then renamed. Standard library only."""

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

# Nothing interrupts a process that waits for the disk: waits are to be short.
SYNC_EVERY = 32 * 2**20

_unfinished: set[Path] = set()


class _Synced(io.FileIO):
    """On disk but for its last SYNC_EVERY bytes."""

    waiting = 0

    def write(self, content) -> int:
        written = super().write(content)
        self.waiting += written
        if self.waiting >= SYNC_EVERY:
            os.fsync(self.fileno())
            self.waiting = 0
        return written


def _lock(file: io.FileIO, wait: bool) -> bool:
    """A lock ends with its process, however that ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # it is locked, or this file system has no locks
        return False
    return True


def _remove_leftovers(target: Path) -> None:
    """Of writers that were killed."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with contextlib.suppress(OSError), io.FileIO(path, "r+") as file:
            if _lock(file, wait=False):
                path.unlink()


def _beside(target: Path) -> tuple[Path, _Synced]:
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        file = _Synced(path, "x")
        # Another writer may have taken it for a leftover before it was locked.
        if not _lock(file, wait=True) or os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()


@contextlib.contextmanager
def replaced(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends, and leaves no trace when it raises.

    It has the mode of the file that it replaces, or that of any new file. What a killed writer of the same path left
    beside it is removed. Raises OSError, also where ``path`` is something else than a regular file.
    """
    target = Path(path).resolve()
    mode = None
    if target.exists():
        if not target.is_file():
            raise OSError(f"{path}: expected a regular file")
        mode = stat.S_IMODE(target.stat().st_mode)
    _remove_leftovers(target)
    unfinished, raw = _beside(target)
    _unfinished.add(unfinished)
    try:
        with io.BufferedWriter(raw, 2**20) as file:
            if mode is not None:
                os.fchmod(raw.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, target)  # while it is locked
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        _unfinished.discard(unfinished)


def write_atomically(path: str | os.PathLike, content: bytes | str) -> None:
    """Raises OSError; ``path`` has its old content then."""
    with replaced(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def end_on_signals(program: str) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end the process at once, and nothing unfinished stays.

    As exceptions they can get lost: torch.save replaces one by an error of its own. Ignored signals stay ignored.
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

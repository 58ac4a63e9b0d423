"""Writes files atomically: into a temporary file in the same folder, then renamed. Standard library only.

Locks folders, and refuses paths with characters that fairseq interprets.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextlib.contextmanager
def named(path: str | os.PathLike) -> Iterator[None]:
    """Names the file in an error of a full or broken disk, which the operating system reports without it."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replaced(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a binary file that replaces ``path`` when the block ends, and is removed when the block raises.

    It keeps the mode of the file that it replaces. A writer that is killed leaves ``.NAME.PID.tmp`` beside it. Raises
    OSError if writing fails, or ``path`` exists and is not a regular file, or is an open one such as ``/dev/stdout``,
    to which others may be writing.
    """
    target = Path(path).resolve()
    if (target.exists() and not target.is_file()) or _is_open_file(Path(path)):
        raise OSError(f"{path}: expected a regular file")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "wb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            with named(path):
                yield file
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if getattr(error, "filename", None) in (unfinished, str(unfinished)):
            error.filename = str(path)  # the name that the caller knows
        raise


def _is_open_file(path: Path) -> bool:
    """Returns True if a path leads to an open file of a process (/dev/stdout, /dev/fd/N), which Linux has in /proc."""
    while not (found := path.parent.resolve().is_relative_to("/proc")) and path.is_symlink():
        path = path.parent / path.readlink()
    return found


@contextlib.contextmanager
def locked(folder: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Locks a folder for one process. While another one has it, calls ``busy``, and waits unless that raises."""
    path = folder / ".lock"
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "w"))
        except PermissionError:  # the file of another user
            file = stack.enter_context(open(path))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        if not free:
            busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(path: str | os.PathLike, content: bytes | str) -> None:
    """Replaces the content of ``path``. Raises OSError when that fails; ``path`` then keeps its old content."""
    with replaced(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def reason(error: BaseException) -> str:
    """Returns the message of an error for users: of an OSError ``FILE: REASON``, without its number.

    Of a RuntimeError, it is the first line or, if an OSError is behind it, as when PyTorch finds the disk full, that
    error's message.
    """
    cause = error
    while isinstance(error, RuntimeError) and cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror if cause.filename is None else f"{cause.filename}: {cause.strerror}"
    message = str(cause or error)
    return (message.partition("\n")[0] if isinstance(error, RuntimeError) else message) or type(error).__name__


_INTERPRETED = {"${": "fills in a value", "\\": "takes the next character for another"}


def refuse_interpreted(path: str | os.PathLike, texts: tuple[str, ...] = (":", ",", "${", "\\")) -> None:
    """Raises ValueError for a path with one of the texts that fairseq interprets."""
    for text in texts:
        if text in str(path):
            raise ValueError(
                f"{path}: expected a path without '{text}', where fairseq "
                f"{_INTERPRETED.get(text, 'cuts paths')}; choose another folder"
            )

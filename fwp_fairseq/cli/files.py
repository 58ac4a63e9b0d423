"""Files that are either complete or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends, and leaves no trace when it raises."""
    target = Path(path).resolve()
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise

"""Writes fairseq's checkpoints completely or not at all.

fairseq repeats a failed save by appending to what it has written, and copies onto the old file.
"""

import contextlib
import os
import time
from collections.abc import Iterator

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from ..files import reason
from . import around


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """Yields the name of a new file, which replaces ``path`` when the block ends and is removed if it raises."""
    unfinished = path + ".tmp"
    try:
        yield unfinished
        PathManager.rename(unfinished, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)
        raise


@around(checkpoint_utils, "torch_persistent_save")
def save_then_rename(save, obj, filename, async_write: bool = False):
    if async_write or not isinstance(filename, str) or not PathManager.supports_rename(filename):
        return save(obj, filename, async_write)
    for attempts_left in (2, 1, 0):
        try:
            with _replacing(filename) as unfinished, PathManager.open(unfinished, "wb") as file:
                torch.save(obj, file)
            return
        except (OSError, RuntimeError) as error:
            if not attempts_left:
                raise OSError(f"checkpoint {filename} cannot be written: {reason(error)}") from error
            time.sleep(2.5)


@around(PathManager, "copy")
def copy_then_rename(copy, src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """Copies a checkpoint completely or not at all; checkpoint_last.pt and checkpoint_best.pt are such copies."""
    if not overwrite or not PathManager.supports_rename(dst_path):
        return copy(src_path, dst_path, overwrite=overwrite)
    with _replacing(dst_path) as unfinished:
        return copy(src_path, unfinished, overwrite=True)

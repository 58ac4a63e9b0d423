"""Writes fairseq's checkpoints atomically, and makes errors about them name the file and the reason.

When the disk is full, the previous checkpoint stays intact, and no unfinished file remains.
"""

import os
import pickle
import re
import time

import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

# What torch says of a class or function that weights_only does not let through.
_UNSAFE = re.compile(r"(?:GLOBAL|global) (\S+)[^\n]* was not an allowed global|unsupported GLOBAL (\S+)")


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def make_saving_atomic() -> None:
    """Saves checkpoints to a temporary file that is then renamed.

    fairseq repeats a failed save by appending to what it has already written, and leaves the unfinished file there.
    """
    save = checkpoint_utils.torch_persistent_save
    manager = checkpoint_utils.PathManager

    def write(obj, path: str) -> None:
        with manager.open(path, "wb") as file:
            torch.save(obj, file)

    def save_then_rename(obj, filename, async_write: bool = False):
        if async_write or not isinstance(filename, str) or not manager.supports_rename(filename):
            return save(obj, filename, async_write)
        unfinished = filename + ".tmp"
        for attempts_left in (2, 1, 0):
            try:
                write(obj, unfinished)
                return manager.rename(unfinished, filename)
            except (OSError, RuntimeError) as error:
                _remove(unfinished)
                if not attempts_left:
                    raise OSError(f"checkpoint {filename} cannot be written: {_first_line(error)}") from error
                time.sleep(2.5)
            except BaseException:
                _remove(unfinished)
                raise

    checkpoint_utils.torch_persistent_save = save_then_rename


def make_copies_atomic() -> None:
    """Copies a saved checkpoint to checkpoint_last.pt and checkpoint_best.pt by way of a temporary file.

    fairseq copies onto the old file, which an interruption leaves damaged.
    """
    manager = checkpoint_utils.PathManager
    copy = manager.copy

    def copy_then_rename(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        if not overwrite or not manager.supports_rename(dst_path):
            return copy(src_path, dst_path, overwrite=overwrite)
        unfinished = dst_path + ".tmp"
        try:
            copied = copy(src_path, unfinished, overwrite=True)
            manager.rename(unfinished, dst_path)
        except BaseException:
            _remove(unfinished)
            raise
        return copied

    manager.copy = staticmethod(copy_then_rename)


def name_unreadable_files() -> None:
    """Names the file in the error about a checkpoint that cannot be read."""
    load = checkpoint_utils.load_checkpoint_to_cpu

    def load_and_name(path, *args, **kwargs):
        try:
            return load(path, *args, **kwargs)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            if found := _UNSAFE.search(str(error)):
                raise RuntimeError(
                    f"checkpoint {path} is refused: reading it would run {found[1] or found[2]}, which no checkpoint "
                    "of fairseq needs. Nothing was run"
                ) from None
            raise RuntimeError(
                f"checkpoint {path} cannot be read (truncated or not a checkpoint): {_first_line(error)}. "
                "Remove it to continue from an earlier one, e.g. with --restore-file"
            ) from error

    checkpoint_utils.load_checkpoint_to_cpu = load_and_name


def explain_misfits() -> None:
    """States the reason when a checkpoint does not fit the model.

    fairseq answers every such failure with "please ensure that the architectures match".
    """
    load = Trainer.load_checkpoint

    def load_or_say_why(self, filename, *args, **kwargs):
        try:
            return load(self, filename, *args, **kwargs)
        except Exception as error:
            if not str(error).startswith("Cannot load model parameters") or error.__context__ is None:
                raise
            reason = " ".join(str(error.__context__).split())
            raise RuntimeError(f"checkpoint {filename} does not fit the model: {reason}") from error

    Trainer.load_checkpoint = load_or_say_why

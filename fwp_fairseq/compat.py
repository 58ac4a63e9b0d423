"""What today's torch, numpy and omegaconf need of fairseq. Imported before the models; has effects, exports nothing.

* torch >= 2.6 loads checkpoints with ``weights_only=True``: exactly the classes that fairseq writes into checkpoints
  and sends between workers are registered as safe, so loading stays safe and works.
* numpy >= 1.24 and 2 dropped the aliases that fairseq still uses.
* Checkpoints and their copies are written atomically: a disk that fills up leaves the previous checkpoint whole, and
  nothing half written.
* A checkpoint that cannot be written, read or loaded into the model is named in the error, with the reason.
* The moving average of parameters (--store-ema) leaves integer buffers alone.
* Start-up warnings about fairseq's own internals, nothing that a user could act on, are silenced.
"""

import argparse
import collections
import logging
import os
import pickle
import time
import types
import typing
import warnings

import numpy as np
import omegaconf
import torch
from fairseq import checkpoint_utils
from fairseq.data import bucket_pad_length_dataset, data_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.models.ema.ema import EMA
from fairseq.trainer import Trainer
from omegaconf import nodes

logger = logging.getLogger(__name__)


def _register_safe_globals() -> None:
    if not hasattr(torch.serialization, "add_safe_globals"):
        return  # torch < 2.4 has no list of safe classes
    core, spelling, other = (
        (np._core, "numpy._core", "numpy.core") if hasattr(np, "_core") else (np.core, "numpy.core", "numpy._core")
    )
    # Legacy models store their arguments as a Namespace; --eval-bleu stores its meters as numpy arrays. A checkpoint
    # written under numpy 1 names numpy.core, one written under numpy 2 names numpy._core.
    checkpoint = [argparse.Namespace, np.ndarray, np.dtype]
    checkpoint += [type(np.dtype(t)) for t in (np.bool_, np.int32, np.int64, np.float32, np.float64)]
    for function in ("_reconstruct", "scalar"):
        found = getattr(core.multiarray, function)
        checkpoint += [(found, f"{module}.multiarray.{function}") for module in (spelling, other)]
    # The first worker of a resumed multi-worker training sends the whole state, with its configuration, to the others.
    workers = [dict, int, list, str, float, bool, collections.defaultdict, typing.Any]
    workers += [distributed_utils._TensorPlaceholder]
    workers += [omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.base.ContainerMetadata, omegaconf.base.Metadata]
    workers += [
        value for value in vars(nodes).values() if isinstance(value, type) and issubclass(value, nodes.ValueNode)
    ]
    torch.serialization.add_safe_globals(checkpoint + workers)


def _restore_numpy_aliases() -> None:
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)
    for name, alias in {"int": int, "float": float, "bool": bool, "object": object}.items():
        if name not in np.__dict__:
            setattr(np, name, alias)

    def get_buckets(sizes, num_buckets):
        # numpy 2 has no percentile(interpolation=) any more; --num-batch-buckets needs it.
        return np.unique(np.percentile(sizes, np.linspace(0, 100, num_buckets + 1), method="lower")[1:])

    data_utils.get_buckets = bucket_pad_length_dataset.get_buckets = get_buckets


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _make_saving_atomic() -> None:
    """fairseq repeats a failed save behind the bytes already written, and leaves its unfinished file behind."""
    save = checkpoint_utils.torch_persistent_save
    if getattr(save, "atomic", False):
        return
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

    save_then_rename.atomic = True
    checkpoint_utils.torch_persistent_save = save_then_rename


def _make_checkpoint_copies_atomic() -> None:
    """checkpoint_last.pt and checkpoint_best.pt are copies of a finished save; fairseq copies over the old file."""
    manager = checkpoint_utils.PathManager
    if getattr(manager.copy, "atomic", False):
        return
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

    copy_then_rename.atomic = True
    manager.copy = staticmethod(copy_then_rename)


def _name_unreadable_checkpoints() -> None:
    load = checkpoint_utils.load_checkpoint_to_cpu
    if getattr(load, "names_file", False):
        return

    def load_and_name(path, *args, **kwargs):
        try:
            return load(path, *args, **kwargs)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise RuntimeError(
                f"checkpoint {path} cannot be read (truncated or not a checkpoint): {_first_line(error)}. "
                "Remove it to continue from an earlier one, e.g. with --restore-file"
            ) from error

    load_and_name.names_file = True
    checkpoint_utils.load_checkpoint_to_cpu = load_and_name


def _say_why_checkpoints_do_not_fit() -> None:
    """fairseq answers every failure with "please ensure that the architectures match"."""
    load = Trainer.load_checkpoint
    if getattr(load, "says_why", False):
        return

    def load_or_say_why(self, filename, *args, **kwargs):
        try:
            return load(self, filename, *args, **kwargs)
        except Exception as error:
            if not str(error).startswith("Cannot load model parameters") or error.__context__ is None:
                raise
            reason = " ".join(str(error.__context__).split())
            raise RuntimeError(f"checkpoint {filename} does not fit the model: {reason}") from error

    load_or_say_why.says_why = True
    Trainer.load_checkpoint = load_or_say_why


def _keep_integers_out_of_moving_averages() -> None:
    initialize = EMA.__init__
    if getattr(initialize, "keeps_integers", False):
        return

    def initialize_and_skip(self, model, *args, **kwargs):
        initialize(self, model, *args, **kwargs)
        integers = {name for name, tensor in model.named_buffers() if not tensor.is_floating_point()}
        self.skip_keys = set(self.skip_keys) | integers

    initialize_and_skip.keeps_integers = True
    EMA.__init__ = initialize_and_skip


def _silence_startup_warnings() -> None:
    for message, category in (
        (r"(?s).*Usage of deprecated keyword in package header", UserWarning),
        (r"(?s).*is validated against ConfigStore schema with the same name", UserWarning),
        (r"(?s).*The strict flag in the compose API is deprecated", UserWarning),
        (r"(?s).*The version_base parameter is not specified", UserWarning),
        (r"(?s).*hydra\.experimental", UserWarning),
        (r"(?s).*'pin_memory' argument is set as true but no accelerator is found", UserWarning),
        (r"(?s).*torch\.cuda\.amp\.", FutureWarning),
    ):
        warnings.filterwarnings("ignore", message=message, category=category)


_register_safe_globals()
_restore_numpy_aliases()
_make_saving_atomic()
_make_checkpoint_copies_atomic()
_name_unreadable_checkpoints()
_say_why_checkpoints_do_not_fit()
_keep_integers_out_of_moving_averages()
_silence_startup_warnings()

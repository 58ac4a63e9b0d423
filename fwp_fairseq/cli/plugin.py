"""Imports fairseq and then this plugin, as fairseq itself does for --user-dir."""

import argparse
import importlib
import logging
from pathlib import Path

from .errors import CommandError

FOLDER = Path(__file__).resolve().parents[1]  # for --user-dir
INSTALL = (
    "pip install torch numpy cython setuptools wheel packaging && "
    "env -u CUDA_HOME pip install --no-build-isolation fairseq-fixed==0.12.3.1"
)


def import_plugin() -> None:
    """Registers the models and tasks of this package with fairseq, whether or not it was imported before.

    Raises CommandError with the install commands when there is no fairseq, or one that cannot be imported.
    """
    root, before = logging.root, (logging.root.level, logging.root.handlers[:])
    logging.disable(logging.INFO)  # an error is to be one line, without fairseq's own log messages around it
    try:
        _import()
    finally:
        logging.disable(logging.NOTSET)
        root.setLevel(before[0])  # fairseq sets up a log, of DEBUG, while it is imported
        root.handlers[:] = before[1]


def _import() -> None:
    try:
        importlib.import_module("fairseq")
    except ImportError as error:
        raise CommandError(f"fairseq cannot be imported ({error}); install it with: {INSTALL}") from None
    except ValueError as error:
        if "mutable default" not in str(error):
            raise
        raise CommandError(
            f"this fairseq does not run on Python 3.11 or newer ({error}); "
            f"pip uninstall fairseq, then install the maintained one with: {INSTALL}"
        ) from None
    from fairseq.utils import import_user_module

    import_user_module(argparse.Namespace(user_dir=str(FOLDER)))

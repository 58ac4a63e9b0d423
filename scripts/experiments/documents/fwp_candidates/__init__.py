"""For fairseq's --user-dir: the package's Transformer with attention that is being tried (``--candidates``)."""

import argparse
from pathlib import Path

from fairseq import utils

import fwp_fairseq

utils.import_user_module(argparse.Namespace(user_dir=str(Path(fwp_fairseq.__file__).parent)))

from . import model  # noqa: E402, F401  (registers the model)

"""fairseq-eval-lm and fairseq-validate print their results on standard output, without lines for debugging.

fairseq sets up logging to standard error when it is imported, so what a tool sets up later has no effect.
"""

import logging
import os
import sys

from . import program

# This module of fairseq sets up a log at level DEBUG. Another level is that of a program with a log of its own.
if "fairseq.models.wav2vec.wav2vec2_classification" in sys.modules and logging.root.level == logging.DEBUG:
    logging.root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    if program("eval_lm") or program("validate"):  # whose result is their log; the other tools keep it apart
        for handler in logging.root.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
                handler.setStream(sys.stdout)

"""--patience counts the validations of the whole training, not only those since it was resumed.

Symptom: A training with --patience that is resumed ends later than one that was not interrupted.
Cause: fairseq keeps the best result, and how long ago it was, in the attributes of a function, and saves neither.
Test: tests/fairseq_tools/test_interrupted.py::test_ends_as_if_uninterrupted
"""

import sys

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from . import around

_COUNTERS = ("best", "num_runs")


def _function():
    """fairseq's ``should_stop_early``, or None in a program that does not train."""
    return getattr(sys.modules.get("fairseq_cli.train"), "should_stop_early", None)


@around(Trainer, "save_checkpoint")
def save_counters(save, self, filename, extra_state):
    found = {name: getattr(_function(), name) for name in _COUNTERS if hasattr(_function(), name)}
    return save(self, filename, extra_state | {"early_stopping": found})


@around(checkpoint_utils, "load_checkpoint")
def load_counters(load, cfg, trainer, **kwargs):
    extra_state, iterator = load(cfg, trainer, **kwargs)
    fresh = cfg.reset_optimizer or cfg.reset_meters or not trainer.get_num_updates()
    if extra_state is not None and not fresh and _function() is not None:
        vars(_function()).update(extra_state.get("early_stopping", {}))
    return extra_state, iterator

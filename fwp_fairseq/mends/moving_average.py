"""--store-ema averages parameters only, can begin from a model without an average, and is resumed where it was.

fairseq averages all of a model's state, deletes parameters that it reads later, and does not save --ema-update-freq.
It reads the checkpoint of --ema-seed-model without the checks of other checkpoints.
"""

from unittest import mock

from fairseq import checkpoint_utils
from fairseq.models.ema.ema import EMA
from fairseq.trainer import Trainer

from . import around, read_states


def _average(path: str) -> dict:
    """Reads the average of a checkpoint, or its parameters if it has none."""
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    return {**state, "model": (state.get("extra_state") or {}).get("ema") or state["model"]}


@around(EMA, "__init__", ours=True)
def initialize_and_skip(initialize, self, model, *args, **kwargs):
    with mock.patch.object(checkpoint_utils, "load_ema_from_checkpoint", _average):
        initialize(self, model, *args, **kwargs)
    self.skip_keys = set(self.skip_keys) | {name for name, _ in model.named_buffers()}


@around(Trainer, "load_checkpoint")
def load_with_average(load, self, filename, *args, **kwargs):
    """Lets the average of a checkpoint that has none begin with its parameters."""
    if not self.cfg.ema.store_ema:
        return load(self, filename, *args, **kwargs)

    def with_average(state: dict) -> dict:
        state["extra_state"].setdefault("ema", dict(state["model"]))
        return state

    with read_states(with_average):
        return load(self, filename, *args, **kwargs)


@around(Trainer, "load_checkpoint", ours=True)
def load_and_count(load, self, *args, **kwargs):
    """Counts updates on where the training stopped."""
    extra_state = load(self, *args, **kwargs)
    if self.cfg.ema.store_ema and self.cfg.ema.ema_update_freq > 1:
        self.ema.update_freq_counter = self.get_num_updates() % self.cfg.ema.ema_update_freq
    return extra_state

"""Makes a resumed training see the batches of an uninterrupted one, and lets a finished one make no further update.

fairseq draws its batches again from the epoch in which a session begins, and checks limits only after an update.
"""

import inspect
import logging

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.file_io import PathManager
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from . import around

logger = logging.getLogger(__name__)

_USUAL = "checkpoint_last.pt"  # fairseq's --restore-file
# A --max-epoch beyond which fairseq_cli.train begins no epoch at all; 0 would mean no limit.
_NO_EPOCH = -1


@around(FairseqTask, "get_batch_iterator", ours=True)
def get_and_keep(get_batch_iterator, self, *args, **kwargs):
    """Gives every session of a training the batches of its first session.

    fairseq groups sentences of equal length at random, seeded by --seed and the epoch in which the session began, and
    keeps these batches for the session's later epochs. A training that is resumed after its first epoch would get
    other batches, and in the middle of an epoch it would see some sentences twice and others not at all. With this
    change the batches are always those of epoch 1, so that checkpoints written without it are resumed correctly too.
    Batches that fairseq makes anew for each epoch (--update-epoch-batch-itr True, sharded data, tasks that require it)
    depend on the epoch alone and are left as they are.
    """
    bound = inspect.signature(get_batch_iterator).bind(self, *args, **kwargs)
    bound.apply_defaults()
    options = bound.arguments
    dataset, epoch = options["dataset"], options["epoch"]
    made_once = self.can_reuse_epoch_itr(dataset) and not (
        options["disable_iterator_cache"] or options.get("update_epoch_batch_itr", False)
    )
    if not made_once or dataset in self.dataset_to_epoch_iter:
        return get_batch_iterator(self, *args, **kwargs)
    options["epoch"] = 1
    iterator = get_batch_iterator(*bound.args, **bound.kwargs)
    iterator.epoch = max(epoch, 1)
    dataset.set_epoch(epoch)
    return iterator


def _finished(trainer, extra_state) -> str | None:
    """Returns the reason why this training has nothing left to do, or None; all workers agree."""
    limits, updates = trainer.cfg.optimization, trainer.get_num_updates()
    if 0 < (limits.max_update or 0) <= updates:
        return f"num_updates: {updates} >= max_update: {limits.max_update}"
    hours = trainer._previous_training_time / 3600
    if 0 < limits.stop_time_hours < hours:
        return f"cumulative_training_time: {hours} > stop_time_hours: {limits.stop_time_hours} hour(s)"
    patience, waited = trainer.cfg.checkpoint.patience, (extra_state or {}).get("early_stopping", {}).get("num_runs", 0)
    if 0 < patience <= waited and updates and not trainer.cfg.checkpoint.reset_meters:
        return f"--patience {patience}: {waited} validations without an improvement"
    return None


@around(EpochBatchIterator, "_get_iterator_for_epoch", ours=True)
def get_and_shuffle(get_iterator, self, epoch, shuffle, *args, **kwargs):
    """Shuffles the epochs after --curriculum N. fairseq shuffles all epochs of a session like its first one."""
    if self.dataloader is not None:  # the epochs of a session share it, with the sampler of its batches
        self.epoch_batch_sampler.shuffle = shuffle
    return get_iterator(self, epoch, shuffle, *args, **kwargs)


@around(Trainer, "load_checkpoint", ours=True)
def load_and_say(load, self, filename, reset_optimizer=False, *args, **kwargs):
    """Warns if a training cannot continue at its last update, because its checkpoints lack the optimizer's state."""
    extra_state = load(self, filename, reset_optimizer, *args, **kwargs)
    if reset_optimizer:
        self._previous_training_time = 0  # that of another training, as its updates are
    done = (self._optim_history or [{}])[-1].get("num_updates", 0) if extra_state else 0
    if not self.is_data_parallel_master:
        return extra_state
    if done and not reset_optimizer and not self.get_num_updates():
        logger.warning(
            f"{filename} holds no optimizer state (--no-save-optimizer-state, or an average): the training keeps "
            f"its parameters and begins again at update 0 of {done}"
        )
    elif self.cfg.checkpoint.no_save_optimizer_state and not self.cfg.checkpoint.no_save:
        logger.warning("--no-save-optimizer-state: if this training is resumed, it begins again at update 0")
    return extra_state


@around(checkpoint_utils, "load_checkpoint", ours=True)
def load_and_stop(load, cfg, trainer, **kwargs):
    """Stops a resumed training that has reached --max-update, --stop-time-hours or --patience before another update."""
    restored = cfg.restore_file.replace(".pt", f"{trainer.checkpoint_suffix}.pt")
    if cfg.restore_file != _USUAL and not PathManager.exists(restored) and trainer.is_data_parallel_master:
        logger.warning(f"--restore-file {restored}: no such checkpoint; the training begins with new parameters")
    loaded = load(cfg, trainer, **kwargs)
    if reason := _finished(trainer, loaded[0]):
        logger.info(f"Stopping training before its first update due to {reason}")
        trainer.cfg.optimization.max_epoch = _NO_EPOCH
    return loaded

"""An interrupted training goes on as if nothing had happened, and a finished one stays as it is."""

import inspect
import logging

from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask

logger = logging.getLogger(__name__)

# fairseq_cli.train takes 0 for no limit, and begins no epoch beyond any other number.
_NO_EPOCH = -1


def keep_batches() -> None:
    """Every session of a training has the batches of the first.

    fairseq puts sentences of equal length together at random, seeded by --seed and the epoch in which the session
    began, and keeps these batches for the session's later epochs. A training resumed behind its first epoch would have
    others; in the middle of an epoch some sentences would come twice and others not at all. Here the batches are those
    of epoch 1 whenever the session began, so that checkpoints written without this are continued rightly too. Batches
    that are made anew for each epoch (--update-epoch-batch-itr True, sharded data, tasks that ask for it) depend on
    nothing but the epoch, and stay fairseq's.
    """
    get_batch_iterator = FairseqTask.get_batch_iterator
    if getattr(get_batch_iterator, "keeps_batches", False):
        return
    signature = inspect.signature(get_batch_iterator)

    def get_and_keep(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        options = given.arguments
        dataset, epoch = options["dataset"], options["epoch"]
        made_once = self.can_reuse_epoch_itr(dataset) and not (
            options["disable_iterator_cache"] or options.get("update_epoch_batch_itr", False)
        )
        if not made_once or dataset in self.dataset_to_epoch_iter:
            return get_batch_iterator(self, *args, **kwargs)
        options["epoch"] = 1
        iterator = get_batch_iterator(*given.args, **given.kwargs)
        iterator.epoch = max(epoch, 1)
        dataset.set_epoch(epoch)
        return iterator

    get_and_keep.keeps_batches = True
    FairseqTask.get_batch_iterator = get_and_keep


def _finished(trainer) -> str | None:
    """Why this training has nothing left to do, if so; what it is told from is equal on all workers."""
    limits, updates = trainer.cfg.optimization, trainer.get_num_updates()
    if 0 < (limits.max_update or 0) <= updates:
        return f"num_updates: {updates} >= max_update: {limits.max_update}"
    hours = trainer._previous_training_time / 3600
    if 0 < limits.stop_time_hours < hours:
        return f"cumulative_training_time: {hours} > stop_time_hours: {limits.stop_time_hours} hour(s)"
    return None


def leave_finished_alone() -> None:
    """fairseq looks at --max-update and --stop-time-hours behind an update only, and so makes one more update of a
    training that has reached them."""
    load = checkpoint_utils.load_checkpoint
    if getattr(load, "leaves_finished_alone", False):
        return

    def load_and_stop(cfg, trainer, **kwargs):
        found = load(cfg, trainer, **kwargs)
        if reason := _finished(trainer):
            logger.info(f"Stopping training before its first update due to {reason}")
            trainer.cfg.optimization.max_epoch = _NO_EPOCH
        return found

    load_and_stop.leaves_finished_alone = True
    checkpoint_utils.load_checkpoint = load_and_stop

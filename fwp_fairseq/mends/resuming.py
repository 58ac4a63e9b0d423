"""Makes a resumed training see the batches of an uninterrupted one, and lets a finished one make no further update.

Symptom: A resumed training sees some sentences twice and others not at all, and makes an update after --max-update.
Cause: fairseq draws its batches anew from the epoch in which a session begins, and checks limits after an update only.
Test: tests/fairseq_tools/test_training.py::test_resumed_run_is_bit_identical
"""

import inspect
import logging

from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask

logger = logging.getLogger(__name__)

# A --max-epoch beyond which fairseq_cli.train begins no epoch at all; 0 would mean no limit.
_NO_EPOCH = -1


def _keep_batches() -> None:
    """Gives every session of a training the batches of its first session.

    fairseq groups sentences of equal length at random, seeded by --seed and the epoch in which the session began, and
    keeps these batches for the session's later epochs. A training that is resumed after its first epoch would get
    other batches, and in the middle of an epoch it would see some sentences twice and others not at all. With this
    change the batches are always those of epoch 1, so that checkpoints written without it are resumed correctly too.
    Batches that fairseq makes anew for each epoch (--update-epoch-batch-itr True, sharded data, tasks that require it)
    depend on the epoch alone and are left as they are.
    """
    get_batch_iterator = FairseqTask.get_batch_iterator
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

    FairseqTask.get_batch_iterator = get_and_keep


def _finished(trainer) -> str | None:
    """Why this training has nothing left to do, or None; all workers come to the same answer."""
    limits, updates = trainer.cfg.optimization, trainer.get_num_updates()
    if 0 < (limits.max_update or 0) <= updates:
        return f"num_updates: {updates} >= max_update: {limits.max_update}"
    hours = trainer._previous_training_time / 3600
    if 0 < limits.stop_time_hours < hours:
        return f"cumulative_training_time: {hours} > stop_time_hours: {limits.stop_time_hours} hour(s)"
    return None


def _stop_finished_trainings() -> None:
    """Stops a resumed training that has reached --max-update or --stop-time-hours before it makes another update.

    fairseq checks these limits only after an update, and so makes one update too many.
    """
    load = checkpoint_utils.load_checkpoint

    def load_and_stop(cfg, trainer, **kwargs):
        found = load(cfg, trainer, **kwargs)
        if reason := _finished(trainer):
            logger.info(f"Stopping training before its first update due to {reason}")
            trainer.cfg.optimization.max_epoch = _NO_EPOCH
        return found

    checkpoint_utils.load_checkpoint = load_and_stop


def mend() -> None:
    _keep_batches()
    _stop_finished_trainings()

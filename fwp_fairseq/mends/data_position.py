"""Resumes in the middle of an epoch at the right batch when --update-freq or the number of processes has changed.

fairseq saves how many batches each process has seen, but not how many processes there were, and counts the updates that
are left of an epoch as if all earlier ones had had the present --update-freq.
"""

import logging

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator

from . import around

logger = logging.getLogger(__name__)


@around(EpochBatchIterator, "state_dict", ours=True)
def save_with_processes(save, self):
    """Saves the number of processes (``num_shards``) beside the number of batches that each of them has had."""
    return save(self) | {"num_shards": self.num_shards}


@around(EpochBatchIterator, "load_state_dict", ours=True)
def load_for_processes(load, self, state_dict):
    done, before = state_dict.get("iterations_in_epoch", 0), state_dict.get("num_shards", self.num_shards)
    if done and before != self.num_shards:
        # If the division leaves a remainder, a few batches are repeated rather than left out.
        here = done * before // self.num_shards
        logger.info(f"{done} batches in each of {before} processes are {here} in each of {self.num_shards}")
        state_dict = state_dict | {"iterations_in_epoch": here}
    load(self, state_dict)


@around(GroupedIterator, "__init__", ours=True)
def group_the_rest(initialize, self, iterable, chunk_size, skip_remainder_batch=False):
    """Makes groups of the batches that are left of an epoch.

    The last group may be smaller. With ``skip_remainder_batch`` it is then left out, unless it is the only one.
    """
    left = len(iterable) - iterable.n
    if skip_remainder_batch and left > chunk_size:
        left -= left % chunk_size
        iterable.take(iterable.n + left)
    initialize(self, iterable, chunk_size)
    self.total = self.n + -(-left // chunk_size)


@around(checkpoint_utils, "save_checkpoint")
def tell_and_save(save, cfg, trainer, epoch_itr, val_loss):
    """Calls ``before_saving(group)`` of the iterator, if it has one, in every process before a checkpoint is written.

    fairseq asks only the process that writes the checkpoint for the position in the data, and an iterator may keep part
    of it in each process.
    """
    if hasattr(epoch_itr, "before_saving") and not cfg.no_save:
        epoch_itr.before_saving(trainer.data_parallel_process_group)
    return save(cfg, trainer, epoch_itr, val_loss)

"""How far into an epoch a checkpoint was written, whatever the number of processes that go on from it."""

import logging

from fairseq.data.iterators import EpochBatchIterator

logger = logging.getLogger(__name__)


def count_batches_of_all_processes() -> None:
    """fairseq saves the number of batches that each process had, and a training that goes on with more processes skips
    batches, with fewer repeats them. The checkpoint now says for how many processes (``num_shards``) that number is."""
    save, load = EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict
    if getattr(load, "counts_all", False):
        return

    def save_with_processes(self):
        return save(self) | {"num_shards": self.num_shards}

    def load_for_processes(self, state_dict):
        done, before = state_dict.get("iterations_in_epoch", 0), state_dict.get("num_shards", self.num_shards)
        if done and before != self.num_shards:
            # Where it does not come out even, a few batches are repeated rather than left out.
            here = done * before // self.num_shards
            logger.info(f"{done} batches of each of {before} processes are {here} of each of {self.num_shards}")
            state_dict = state_dict | {"iterations_in_epoch": here}
        load(self, state_dict)

    load_for_processes.counts_all = True
    EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict = save_with_processes, load_for_processes

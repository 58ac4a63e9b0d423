"""A training that is resumed with another --update-freq sees the rest of its epoch once."""

from itertools import product

import pytest
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator
from torch.utils.data import Dataset

from fwp_fairseq import mends
from fwp_fairseq.models.fwp_transformer import FwpTransformer


class Numbers(Dataset):
    def __getitem__(self, index):
        return index


def iterator(batches):
    return EpochBatchIterator(Numbers(), lambda items: items[0], [[n] for n in range(batches)])


@pytest.mark.parametrize("skip", [False, True])
def test_each_batch_of_an_epoch_is_seen_once_with_another_update_freq(monkeypatch, skip):
    monkeypatch.setattr(mends, "_BUILT", {FwpTransformer})
    for batches, before, now in product(range(1, 9), range(1, 5), range(1, 5)):
        for updates in range(1, batches // before):
            first = iterator(batches)
            groups = GroupedIterator(first.next_epoch_itr(), before, skip)
            seen = [batch for _, group in zip(range(updates), groups, strict=False) for batch in group]
            second = iterator(batches)
            second.load_state_dict(first.state_dict())
            rest = GroupedIterator(second.next_epoch_itr(), now, skip)
            assert rest.n == -(-len(seen) // now)
            groups = list(rest)
            assert all(len(group) == now for group in groups[:-1]) and groups
            left_out = batches - len(seen) - sum(map(len, groups))
            assert 0 <= left_out < (now if skip else 1) and (left_out == 0 or len(groups[-1]) == now)
            seen += [batch for group in groups for batch in group]
            assert len(set(seen)) == len(seen)
            assert second.end_of_epoch() and second.next_epoch_idx == 2  # otherwise fairseq repeats the epoch

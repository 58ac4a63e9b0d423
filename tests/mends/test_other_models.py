"""Importing the plugin leaves what fairseq computes with its own models as it is."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch.utils.data import TensorDataset

from fwp_fairseq import mends
from fwp_fairseq.models.fwp_transformer import FwpTransformer


class Theirs(BaseFairseqModel):
    """A model that is not of this plugin."""


class Ours(BaseFairseqModel):
    __module__ = FwpTransformer.__module__


@pytest.mark.parametrize("cls, mended", [(Theirs, False), (Ours, True)])
def test_checkpoints_and_results_change_from_the_first_model_of_ours_on(monkeypatch, cls, mended):
    monkeypatch.setattr(mends, "_BUILT", set())
    cls()
    task = FairseqTask(SimpleNamespace())
    assert task.state_dict() == ({"dictionaries": {}} if mended else {})
    data = EpochBatchIterator(TensorDataset(torch.zeros(1)), list, [[0]])
    data.next_epoch_itr()
    assert ("num_shards" in data.state_dict()) == mended

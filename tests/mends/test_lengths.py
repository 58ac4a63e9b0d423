from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from fairseq.tasks import FairseqTask

from fwp_fairseq.mends import lengths


def test_the_flags_that_a_longer_line_needs_are_those_of_the_task():
    task = FairseqTask(SimpleNamespace(max_target_positions=None, tokens_per_sample=8))
    lines = mock.Mock(**{"filter_indices_by_size.return_value": ([], [0])})
    for training, end in ((None, "{'max_target_positions': N, 'tokens_per_sample': N}\""), (lengths, " N")):
        with mock.patch.object(lengths, "program", lambda _, found=training: found), pytest.raises(ValueError) as error:
            task.filter_indices_by_size([0], lines, max_positions=8)
        assert "take it with --max-target-positions N --tokens-per-sample N" in str(error.value)
        assert str(error.value).endswith(end)


def test_speech_has_no_unknown_words():
    count = lengths._Count(sentences=1)  # so that it is not told at the end of the process
    generator = SimpleNamespace(match_source_len=False, max_len_a=0, max_len_b=5, max_len=100)
    sample = {"net_input": {"src_tokens": torch.randn(2, 20, 10), "src_lengths": torch.tensor([20, 15])}}
    found = [[{"tokens": torch.ones(length)}] for length in (6, 3)]
    count.add(SimpleNamespace(source_dictionary=None), generator, sample, found)
    assert (count.longest, count.cut, count.tokens, count.unknown) == (20, 1, 0, 0)

from types import SimpleNamespace

import torch

from fwp_fairseq.tasks import decoding_report


def test_speech_has_no_unknown_words():
    count = decoding_report._Count(sentences=1)  # so that it is not told at the end of the process
    generator = SimpleNamespace(match_source_len=False, max_len_a=0, max_len_b=5, max_len=100)
    sample = {"net_input": {"src_tokens": torch.randn(2, 20, 10), "src_lengths": torch.tensor([20, 15])}}
    found = [[{"tokens": torch.ones(length)}] for length in (6, 3)]
    count.add(SimpleNamespace(source_dictionary=None), generator, sample, found)
    assert (count.longest, count.cut, count.tokens, count.unknown) == (20, 1, 0, 0)

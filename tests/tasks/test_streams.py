"""Every token of a text is predicted once, from the one before it, whatever the streams."""

import numpy as np
import pytest
import torch

from fwp_fairseq.tasks.streams import Streams, Text, cut
from tests.models.helpers import WORDS

EOS, PAD = WORDS.eos(), WORDS.pad()


class Sentences(list):
    """As much of fairseq's indexed dataset as is read."""

    @property
    def sizes(self):
        return np.array([len(sentence) for sentence in self])


def sentence(first: int, words: int) -> torch.Tensor:
    return torch.tensor([*range(first, first + words), EOS], dtype=torch.int32)


TEXT = Text(
    Sentences([sentence(4, 5), sentence(0, 0), sentence(10, 1), sentence(12, 7), sentence(0, 0), sentence(20, 3)])
)
WHOLE = TEXT.read(0, len(TEXT))


def batches(streams, rows):
    for step in range(len(streams.cut)):
        yield streams.collater([streams[step * streams.rows + row] for row in rows])


def read(rows, length):
    """What each row reads: sources, targets and offsets of its segments."""
    streams = Streams(TEXT, cut(len(TEXT), rows, length), WORDS, len(WORDS))
    found = [[] for _ in range(rows)]
    for batch in batches(streams, range(rows)):
        assert batch["ntokens"] == int((batch["target"] != PAD).sum())
        for row, target in enumerate(batch["target"]):
            size = int((target != PAD).sum())
            assert (target[size:] == PAD).all() and batch["net_input"]["src_lengths"][row] == size
            if size:
                source = batch["net_input"]["src_tokens"][row]
                assert (source[size:] == PAD).all()
                found[row].append((source[:size], target[:size], int(batch["net_input"]["offsets"][row])))
    return found


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("length", [1, 3, 50])
def test_even_streams(rows, length):
    found = read(rows, length)
    target = torch.cat([target for row in found for _, target, _ in row])
    source = torch.cat([source for row in found for source, _, _ in row])
    assert torch.equal(target, WHOLE) and torch.equal(source, torch.cat([torch.tensor([EOS]), WHOLE[:-1]]))
    sizes = [sum(len(target) for _, target, _ in row) for row in found]
    assert max(sizes) - min(sizes) <= 1
    for row, size in zip(found, sizes, strict=True):
        assert [offset for *_, offset in row] == list(range(0, size, length))


def test_texts_and_rows_without_tokens():
    assert len(Text(Sentences())) == 0
    streams = Streams(TEXT, cut(len(TEXT), 40, 4), WORDS, len(WORDS))
    assert all(streams.collater([streams[n]])["target"].shape[1] for n in range(len(streams)))


def test_words_beyond_the_output_dictionary_are_unknown():
    streams = Streams(TEXT, cut(7, 1, 7), WORDS, 6)
    assert streams[0]["target"].tolist() == [4, 5, WORDS.unk(), WORDS.unk(), WORDS.unk(), EOS, EOS]
    assert streams[0]["source"].tolist() == [EOS, 4, 5, 6, 7, 8, EOS]

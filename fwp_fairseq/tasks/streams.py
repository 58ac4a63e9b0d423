"""Cuts a text into streams, one for each batch row, and the streams into segments."""

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from ..modules.carried_state import Segment


class Text(FairseqDataset):
    """Reads the tokens of a split, one sentence after another.

    Args:
        sentences: fairseq's indexed dataset; each sentence ends with the end-of-sentence symbol.
    """

    def __init__(self, sentences):
        self.sentences = sentences
        self.ends = np.cumsum(sentences.sizes, dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, start: int, end: int) -> Tensor:
        """Returns the tokens from ``start`` up to but not including ``end``, int64."""
        if start >= end:
            return torch.empty(0, dtype=torch.long)
        first, last = np.searchsorted(self.ends, (start, end - 1), side="right")
        before = int(self.ends[first - 1]) if first else 0
        tokens = torch.cat([self.sentences[int(number)] for number in range(first, last + 1)])
        return tokens[start - before : end - before].long()


def cut(tokens: int, rows: int, length: int) -> np.ndarray:
    """Cuts a text into streams, one per row, whose lengths differ by at most one token, and cuts these into segments.

    Args:
        tokens: number of tokens of the text.
        rows: number of streams.
        length: tokens per segment; the last segment of a stream is shorter.

    Returns:
        (steps, rows, 3): start, end, and number of earlier tokens in the stream; a row without further text is empty.
    """
    bounds = np.arange(rows + 1) * tokens // rows
    start, end = bounds[:-1], bounds[1:]
    before = np.arange(0, max(end - start), length)[:, None]
    first = np.minimum(start + before, end)
    return np.stack([first, np.minimum(first + length, end), np.broadcast_to(before, first.shape)], 2)


class Streams(FairseqDataset):
    """The segments of all streams; item ``step * rows + row`` is the segment of this row in this step.

    A segment's source is its target shifted by one: every token of the text is predicted once, from the one before it.

    Args:
        text: what is cut.
        cut: (steps, rows, 3), of :func:`cut`.
        entries: the number of words that the model can predict; other words become the unknown word.
    """

    def __init__(self, text: Text, cut: np.ndarray, dictionary, entries: int):
        self.text, self.cut = text, cut
        self.dictionary, self.entries = dictionary, entries

    @property
    def rows(self) -> int:
        return self.cut.shape[1]

    def __len__(self) -> int:
        return self.cut.shape[0] * self.rows

    def __getitem__(self, index: int) -> dict:
        start, end, offset = (int(number) for number in self.cut[divmod(index, self.rows)])
        before = self.text.read(max(start - 1, 0), end - 1)
        if start == 0 and end:
            before = torch.cat([before.new_tensor([self.dictionary.eos()]), before])
        target = self.text.read(start, end)
        target[target >= self.entries] = self.dictionary.unk()
        return {"id": index, "source": before, "target": target, "offset": offset}

    def collater(self, samples: list[dict]) -> dict:
        """Returns a batch for fairseq's language models; the ``segment`` in ``net_input`` says how to read it."""
        pad = self.dictionary.pad()

        def merge(key: str) -> Tensor:
            # A process whose streams end before those of others still gets batches, of one column of pads.
            return collate_tokens([sample[key] for sample in samples], pad, pad_to_length=max(1, *lengths))

        lengths = [len(sample["target"]) for sample in samples]
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "nsentences": len(samples),
            "ntokens": sum(lengths),
            "net_input": {
                "src_tokens": merge("source"),
                "src_lengths": torch.tensor(lengths),
                "offsets": torch.tensor([sample["offset"] for sample in samples]),
                "segment": Segment(),
            },
            "target": merge("target"),
        }

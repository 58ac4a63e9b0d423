"""Loads the corpora in $FWP_DATA as fairseq data sets of sentences, or of documents made by concatenating these."""

import gzip
from functools import cache
from pathlib import Path

import torch
from fairseq.data import Dictionary, LanguagePairDataset
from sentencepiece import SentencePieceProcessor

from fwp_fairseq.cli.pieces import learn
from scripts.data import sources

# The name of a data set to its files (without .en.gz and .de.gz) and the size of the vocabulary learnt on them.
SENTENCES = {"multi30k": ("multi30k/train", 4000), "wmt": ("wmt10k/train", 8000)}
# Documents: exactly this number of target tokens, and at most as many source tokens.
DOCUMENTS = {str(length): length for length in (16, 64, 128, 256, 512, 1024, 2048)}
# The same targets, each with the source of one sentence.
LONG_OUTPUTS = {f"sentence-{length}": length for length in (128, 256, 512, 1024)}
_PAIRS = 10_000


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise SystemExit(
            f"error: {path}: no such file; FWP_DATA names the folder of the corpora (default: {sources.DEFAULT_DATA})"
        )
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(_PAIRS), strict=False)]


@cache
def _pairs(name: str) -> tuple[int, list[tuple[list[int], list[int]]]]:
    """Returns the size of the joint vocabulary, and the pieces of each pair."""
    prefix, vocabulary = SENTENCES[name]
    sides = [_lines(sources.folder(f"{prefix}.{language}.gz")) for language in ("en", "de")]
    model = learn([*sides[0], *sides[1]], vocabulary, hard_vocab_limit=False)
    processor = SentencePieceProcessor(model_proto=model)
    encoded = [processor.encode(lines, out_type=int) for lines in sides]
    return processor.get_piece_size(), [pair for pair in zip(*encoded, strict=True) if all(pair)]


def _documents(pairs: list, length: int, joined: bool) -> list:
    """Concatenates targets until they are long enough, and cuts them; leaves room for the end of sentence.

    Their sources are either joined in the same way, or that of the last pair alone.
    """
    documents, source, target = [], [], []
    for sentence, other in pairs:
        source, target = source + sentence, target + other
        if len(target) >= length - 1:
            documents.append(((source if joined else sentence)[: length - 1], target[: length - 1]))
            source, target = [], []
    return documents


def dictionary(size: int) -> Dictionary:
    """Returns a dictionary of fairseq's special symbols and ``size`` others."""
    words = Dictionary()
    for number in range(size):
        words.add_symbol(f"piece{number}")
    return words


def load(data: str, vocabulary: int | None = None) -> tuple[Dictionary, LanguagePairDataset]:
    """Loads the data set named ``data``, with unused words added up to ``vocabulary``.

    The words are SentencePiece BPE pieces learnt on the same 10 000 pairs. Raises SystemExit for a missing file.
    """
    size, pairs = _pairs(data if data in SENTENCES else "wmt")
    if data not in SENTENCES:
        pairs = _documents(pairs, (DOCUMENTS | LONG_OUTPUTS)[data], joined=data in DOCUMENTS)
    words = dictionary(max(size, vocabulary or 0))
    sides = [[torch.tensor([*(p + words.nspecial for p in pair[i]), words.eos()]) for pair in pairs] for i in (0, 1)]
    source, target = sides
    return words, LanguagePairDataset(
        source, torch.tensor([len(x) for x in source]).numpy(), words,
        target, torch.tensor([len(x) for x in target]).numpy(), words,
    )  # fmt: skip

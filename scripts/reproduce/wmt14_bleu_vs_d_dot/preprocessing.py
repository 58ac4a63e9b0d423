"""Turns raw text into pieces for fairseq-preprocess: Moses's normalisation and tokens, joint BPE, cleaning."""

from __future__ import annotations

import io
import multiprocessing
import os
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from fwp_fairseq.files import replaced, write_atomically

VOCABULARY = 32000
# The share of the training text's characters that pieces cover. Rarer characters, mostly Common Crawl's, become <unk>.
COVERAGE = 0.9999
# Pieces are learnt on every second line: this takes less memory, and frequencies differ from the whole by chance only.
LEARN_EVERY = 2
MAX_PIECES, MAX_RATIO = 250, 1.5
_CHUNK, _BLOCK = 500, 100_000
_worker: dict = {}


def lines(path: Path) -> Iterator[str]:
    # Only \n ends a sentence, because lines of Common Crawl contain other separators.
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def printable(line: str) -> str:
    """Replaces control, format and unassigned characters by spaces, as Moses's remove-non-printing-char.perl does."""
    if line.isprintable():
        return line
    return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in line)


def _start(language: str, normalise: bool) -> None:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    _worker["tokenizer"] = MosesTokenizer(language)
    _worker["normalizer"] = MosesPunctNormalizer(language) if normalise else None


def _tokens(line: str) -> str:
    if _worker["normalizer"] is not None:
        line = printable(_worker["normalizer"].normalize(line))
    else:
        line = line.replace("’", "'")  # as fairseq does with the test set
    return _worker["tokenizer"].tokenize(line, aggressive_dash_splits=True, return_str=True)


def tokenise(sources: list[Path], target: Path, language: str, workers: int, normalise: bool, tick=None) -> int:
    """Writes the tokens of all sources into `target`, one source after another; returns the number of lines."""
    count = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    texts = (line for source in sources for line in lines(source))
    # spawn rather than fork, because the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with (
        context.Pool(workers, initializer=_start, initargs=(language, normalise)) as pool,
        replaced(target) as out,
    ):
        # imap would read all of the text ahead, so it is given one block at a time.
        while block := list(islice(texts, _BLOCK)):
            for text in pool.imap(_tokens, block, chunksize=_CHUNK):
                out.write(f"{text}\n".encode())
                count += 1
                if tick:
                    tick()
    return count


def learn(sources: Iterable[Path], model: Path, vocabulary: int, every: int = LEARN_EVERY) -> None:
    """Learns a joint SentencePiece BPE model on one of `every` lines of tokens, which it does not normalise."""
    import sentencepiece

    memory = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for path in sources for n, line in enumerate(lines(path)) if n % every == 0),
        model_writer=memory,
        model_type="bpe",
        vocab_size=vocabulary,
        character_coverage=COVERAGE,
        normalization_rule_name="identity",
        num_threads=os.cpu_count(),
        minloglevel=2,
    )
    write_atomically(model, memory.getvalue())


def encode(model: Path, sources: dict[str, Path], targets: dict[str, Path], clean: bool, tick=None) -> tuple[int, int]:
    """Writes the pieces of a parallel text; returns the numbers of pairs that were read and kept.

    With `clean`, drops pairs that have an empty side, a side of more than MAX_PIECES, or a longer side of more than
    MAX_RATIO times the shorter. This is Moses's clean-corpus-n.perl with fairseq's limits.
    """
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for path in targets.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    read = kept = 0
    with ExitStack() as stack:
        files = [stack.enter_context(replaced(path)) for path in targets.values()]
        for pair in zip(*(lines(path) for path in sources.values()), strict=True):
            read += 1
            sides = [pieces.encode(side, out_type=str) for side in pair]
            if not clean or _is_clean(*map(len, sides)):
                for file, side in zip(files, sides, strict=True):
                    file.write(f"{' '.join(side)}\n".encode())
                kept += 1
            if tick:
                tick()
    return read, kept


def _is_clean(first: int, second: int) -> bool:
    shorter, longer = sorted((first, second))
    return shorter >= 1 and longer <= MAX_PIECES and longer <= MAX_RATIO * shorter

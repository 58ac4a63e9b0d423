"""From raw text to the pieces that fairseq-preprocess reads: Moses's normalisation and tokens, joint BPE, cleaning."""

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
# Of the training text's characters; the rest of Common Crawl's alphabets becomes <unk>.
COVERAGE = 0.9999
# Every second line: SentencePiece needs less memory, and the frequencies are those of the whole but for chance.
LEARN_EVERY = 2
MAX_PIECES, MAX_RATIO = 250, 1.5
_CHUNK, _BLOCK = 500, 100_000
_worker: dict = {}


def lines(path: Path) -> Iterator[str]:
    # Only \n ends a sentence: Common Crawl holds other separators inside of lines.
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def printable(line: str) -> str:
    """As Moses's remove-non-printing-char.perl: a space for every control, format or unassigned character."""
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
    """Writes the tokens of all sources, one after another; returns the number of lines. Cost: see README.md."""
    count = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    texts = (line for source in sources for line in lines(source))
    # Not fork: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with (
        context.Pool(workers, initializer=_start, initargs=(language, normalise)) as pool,
        replaced(target) as out,
    ):
        # imap reads ahead without bound, hence the blocks.
        while block := list(islice(texts, _BLOCK)):
            for text in pool.imap(_tokens, block, chunksize=_CHUNK):
                out.write(f"{text}\n".encode())
                count += 1
                if tick:
                    tick()
    return count


def learn(sources: Iterable[Path], model: Path, vocabulary: int, every: int = LEARN_EVERY) -> None:
    """A joint SentencePiece BPE model over tokens, which it leaves as they are; learnt on one line in `every`."""
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
    """The pieces of a parallel text; returns the numbers of pairs read and kept.

    `clean`, as Moses's clean-corpus-n.perl with fairseq's limits: drops pairs with an empty side, one of more than
    MAX_PIECES, or sides whose lengths differ by more than MAX_RATIO.
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
